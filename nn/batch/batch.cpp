#include <lockstep/nn/batch/batch.hpp>

#include <algorithm>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

const FieldView* Batch::find(StateField field) const {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const FieldView& f) { return f.field == field; });
  return found == fields.end() ? nullptr : &*found;
}

const TensorView& Batch::view(StateField field) const {
  const FieldView* found = find(field);
  require<UsageError>(found != nullptr, "the batch has no field '", name_of(field),
                      "', expected it to be added before");
  return found->view;
}

}  // namespace lockstep::nn
