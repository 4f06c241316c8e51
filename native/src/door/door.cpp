#include "door/door.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "door/connection.h"
#include "door/http_answer.h"
#include "door/model.h"
#include "door/predict_request.h"

namespace nb = nanobind;

namespace headway::door {
namespace {

constexpr size_t kIdDigits = 32;

double seconds_of(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

int64_t unix_ms() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// `LocalHost.:80` is left to Python; what is told here is a name of the list, as it is, with or without a port.
bool is_name(std::string_view host, std::string_view name) {
    if (!host.starts_with(name)) return false;
    const std::string_view rest = host.substr(name.size());
    if (rest.empty()) return true;
    return rest.size() > 1 && rest[0] == ':' &&
           std::all_of(rest.begin() + 1, rest.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// In a time that the given text's length alone tells.
bool is_equal(std::string_view given, std::string_view key) {
    volatile uint8_t difference = given.size() != key.size();
    for (size_t i = 0; i < given.size(); ++i) {
        const char wanted = key.empty() ? '\0' : key[i % key.size()];
        difference = difference | static_cast<uint8_t>(given[i] ^ wanted);
    }
    return difference == 0;
}

// Hexadecimal digits of so many bytes of the system's.
std::string random_digits(size_t num_bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string bytes(num_bytes, '\0');
    size_t num_filled = 0;
    while (num_filled < num_bytes) {
        const ssize_t num_new = getrandom(bytes.data() + num_filled, num_bytes - num_filled, 0);
        if (num_new < 0 && errno != EINTR) throw std::runtime_error("the system gives no random bytes");
        num_filled += num_new < 0 ? 0 : static_cast<size_t>(num_new);
    }
    std::string text;
    text.reserve(2 * num_bytes);
    for (const char byte : bytes) {
        text += digits[static_cast<uint8_t>(byte) >> 4];
        text += digits[static_cast<uint8_t>(byte) & 15];
    }
    return text;
}

}  // namespace

double monotonic_s() { return seconds_of(std::chrono::steady_clock::now().time_since_epoch()); }

void Counts::add(double duration_s, uint64_t more_tokens) {
    ++num_answered;
    num_tokens += more_tokens;
    seconds += duration_s;
    last_unix_ms = unix_ms();
    http_seconds->observe(duration_s, 1);
    if (infer_seconds != nullptr) infer_seconds->observe(duration_s, 1);
}

bool Door::may_know(std::string_view target) const {
    return target == kPredictPath ? !by_model_.empty() : by_path_.contains(target);
}

std::shared_ptr<Entry> Door::find(std::string_view target, std::string_view body) const {
    std::string model;
    const bool is_predict = target == kPredictPath;
    if (is_predict && !find_model_id(body, model)) return nullptr;
    const Entries& entries = is_predict ? by_model_ : by_path_;
    const auto found = entries.find(is_predict ? std::string_view(model) : target);
    return found == entries.end() ? nullptr : found->second;
}

bool Door::admits(const RequestHead& head) const {
    const auto& hosts = settings_.hosts;
    const bool is_called = hosts.empty() || std::any_of(hosts.begin(), hosts.end(), [&](const std::string& name) {
                               return is_name(head.host, name);
                           });
    if (!is_called || settings_.api_keys.empty()) return is_called;
    bool has_key = false;  // all are compared, whichever it is
    for (const std::string& key : settings_.api_keys) has_key = is_equal(head.api_key, key) || has_key;
    return has_key && head.has_api_key;
}

void Door::write(const std::shared_ptr<Outlet>& outlet, std::string_view head, std::string_view body, bool ends) {
    bool is_first = queue_->add(outlet, {head, body}, false);
    if (ends) is_first = queue_->add_end(outlet) || is_first;
    if (is_first) schedule_();
}

std::string_view Door::date() {
    const int64_t now_s = unix_ms() / 1000;
    if (now_s != date_s_) {
        date_s_ = now_s;
        date_ = http_date(now_s);
    }
    return date_;
}

std::string Door::make_request_id() {
    if (random_.empty()) random_ = random_digits(256 * kIdDigits / 2);
    std::string id = "req-" + random_.substr(random_.size() - kIdDigits);
    random_.resize(random_.size() - kIdDigits);
    return id;
}

void Door::record(const std::shared_ptr<Counts>& counts, std::string request_id, double seconds) {
    if (!keeps_records) return;
    records_.push_back({counts, std::move(request_id), seconds});
    if (records_.size() == 1) call_guarded(on_records_);
}

void Door::add_gathering(const std::shared_ptr<Connection>& connection) {
    if (connection->is_listed) return;
    connection->is_listed = true;
    gathering_.push_back(connection);
    if (gathering_.size() == 1) call_guarded(on_gathering_);
}

bool Door::expire(double now_s, double limit_s) {
    std::vector<std::shared_ptr<Connection>> late;
    std::erase_if(gathering_, [&](const std::weak_ptr<Connection>& each) {
        const std::shared_ptr<Connection> connection = each.lock();
        if (connection == nullptr) return true;
        if (connection->is_gathering()) {
            if (now_s - connection->since_s() < limit_s) return false;
            late.push_back(connection);
        }
        connection->is_listed = false;
        return true;
    });
    for (const std::shared_ptr<Connection>& connection : late) connection->give_up();
    return !gathering_.empty();
}

}  // namespace headway::door
