// Bytes of requests that are kept as they came, of all connections of a door: there is a limit of what they take together.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace headway::door {

// Counted in a total that all of a door share, as long as they are kept.
class HeldBytes {
public:
    HeldBytes() = default;
    explicit HeldBytes(std::shared_ptr<size_t> total) : total_(std::move(total)) {}
    HeldBytes(HeldBytes&& other) noexcept { *this = std::move(other); }
    HeldBytes& operator=(HeldBytes&& other) noexcept {
        if (this == &other) return *this;
        clear();
        total_ = other.total_;
        text_.swap(other.text_);  // its count goes along
        return *this;
    }
    ~HeldBytes() { clear(); }

    std::string_view view() const { return text_; }
    size_t size() const { return text_.size(); }
    void append(std::string_view bytes) {
        text_ += bytes;
        if (total_ != nullptr) *total_ += bytes.size();
    }
    // Keeps the first `size`.
    void cut(size_t size) {
        if (total_ != nullptr) *total_ -= text_.size() - size;
        text_.resize(size);
    }
    // Frees them.
    void clear() {
        if (total_ != nullptr) *total_ -= text_.size();
        text_ = {};
    }

private:
    std::shared_ptr<size_t> total_;
    std::string text_;
};

}  // namespace headway::door
