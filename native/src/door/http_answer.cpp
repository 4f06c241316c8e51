#include "door/http_answer.h"

#include <charconv>
#include <cstdio>
#include <ctime>

namespace headway::door {
namespace {

void append_number(size_t number, std::string& out) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    out.append(digits, end);
}

}  // namespace

void append_answer_head(const AnswerHead& head, std::string& out) {
    out += "HTTP/1.1 200 OK\r\ndate: ";
    out += head.date;
    if (head.json_length) {
        out += "\r\ninference-header-content-length: ";
        append_number(*head.json_length, out);
    }
    out += "\r\ncontent-length: ";
    append_number(head.content_length, out);
    out += "\r\ncontent-type: ";
    out += head.content_type;
    out += "\r\nvary: Origin\r\nx-request-id: ";
    out += head.request_id;
    out += head.closes ? "\r\nconnection: close\r\n\r\n" : "\r\n\r\n";
}

std::string http_date(int64_t unix_seconds) {
    // Not strftime's names of days and months, which are the locale's.
    static constexpr const char* days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                             "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const std::time_t seconds = static_cast<std::time_t>(unix_seconds);
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char text[64];
    const int size = std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[utc.tm_wday],
                                   utc.tm_mday, months[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min,
                                   utc.tm_sec);
    return {text, static_cast<size_t>(size)};
}

}  // namespace headway::door
