// POST /predict of a model that takes tensors or values.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "door/codec.h"
#include "door/infer_answer.h"
#include "door/predict_request.h"
#include "door/signature.h"

namespace headway::door {

class PredictCodec : public Codec {
public:
    PredictCodec(Signature signature, PredictInputs inputs, ModelNames names)
        : signature_(std::move(signature)), inputs_(inputs), names_(std::move(names)) {}

    std::unique_ptr<Asked> read(const RequestHead& head, std::string_view body, std::string_view wire_id,
                                std::string& infer) const override;
    bool write(std::string_view outputs, const Asked& asked, Answer& answer) const override;

private:
    Signature signature_;
    PredictInputs inputs_;
    ModelNames names_;
};

}  // namespace headway::door
