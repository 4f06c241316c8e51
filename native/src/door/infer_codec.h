// POST /v2/models/MODEL/infer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "door/codec.h"
#include "door/infer_answer.h"
#include "door/number_text.h"
#include "door/signature.h"

namespace headway::door {

class InferCodec : public Codec {
public:
    InferCodec(Signature signature, ModelNames names, ExponentSign sign)
        : signature_(std::move(signature)), names_(std::move(names)), sign_(sign) {}

    std::unique_ptr<Asked> read(const RequestHead& head, std::string_view body, std::string_view wire_id,
                                std::string& infer) const override;
    bool write(std::string_view outputs, const Asked& asked, Answer& answer) const override;

private:
    Signature signature_;
    ModelNames names_;
    ExponentSign sign_;
};

}  // namespace headway::door
