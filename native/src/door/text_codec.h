// POST /predict of an encoder: one text, whose ids its process makes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "door/codec.h"
#include "door/infer_answer.h"

namespace headway::door {

class TextCodec : public Codec {
public:
    // Of a longer text the process would make ids for so long that others felt it: Python does that on another thread.
    static constexpr size_t kMaxTextBytes = 16 << 10;

    // prompt: what the model wants before a text; UTF-8.
    TextCodec(std::string prompt, ModelNames names) : prompt_(std::move(prompt)), names_(std::move(names)) {}

    // Appends headway_wire.SubmitText. Plain is one text, alone or in a list, that is not empty.
    std::unique_ptr<Asked> read(const RequestHead& head, std::string_view body, std::string_view wire_id,
                                std::string& submit) const override;
    // Of headway_wire.Embedding.
    bool write(std::string_view embedding, const Asked& asked, Answer& answer) const override;

private:
    std::string prompt_;
    ModelNames names_;
};

}  // namespace headway::door
