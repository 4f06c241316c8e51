// What a model takes and gives (headway_wire.Signature), and whether tensors fit it, as worker/infer_check has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::door {

enum class Datatype : uint8_t {
    boolean, uint8, uint16, uint32, uint64, int8, int16, int32, int64, fp16, bf16, fp32, fp64, bytes
};

// By the protocol's name: FP32, BYTES, ...
std::optional<Datatype> find_datatype(std::string_view name);
std::string_view datatype_name(Datatype datatype);
// Of an element; 0 of BYTES.
size_t item_bytes(Datatype datatype);

// nullopt: over any tensor that there is. The elements of a shape; 1 of no axes.
std::optional<uint64_t> num_elements(std::span<const uint64_t> shape);

constexpr size_t kMaxAxes = 32;

// Of a request's tensor.
class Shape {
public:
    // False: these are too many.
    bool add(uint64_t size) {
        if (num_axes_ == kMaxAxes) return false;
        sizes_[num_axes_++] = size;
        return true;
    }
    std::span<const uint64_t> sizes() const { return {sizes_.data(), num_axes_}; }

private:
    std::array<uint64_t, kMaxAxes> sizes_;
    size_t num_axes_ = 0;
};

struct TensorSpec {
    std::string name;
    Datatype datatype = Datatype::fp32;
    std::vector<int64_t> shape;  // -1: any size
    bool is_optional = false;

    bool fits(Datatype other, std::span<const uint64_t> sizes) const;
};

struct Signature {
    static constexpr size_t kMaxInputs = 64;

    std::vector<TensorSpec> inputs;  // of distinct names, at most kMaxInputs
    std::vector<std::string> outputs;
    bool takes_values = true;

    // nullopt: there is none of that name.
    std::optional<size_t> find_input(std::string_view name) const;
    // Whether it may be asked for: where none are told, any.
    bool may_give(std::string_view output) const;
};

// Which inputs have come: each once, and in the end all that have to.
class CameInputs {
public:
    // False: it came already.
    bool add(size_t index) {
        const uint64_t bit = uint64_t{1} << index;
        const bool is_new = (came_ & bit) == 0;
        came_ |= bit;
        return is_new;
    }
    bool is_all(const Signature& signature) const;

private:
    uint64_t came_ = 0;
};

}  // namespace headway::door
