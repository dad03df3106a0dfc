#pragma once

#include <cudnn.h>

/// A wrapper around the real cuDNN, loaded under cuDNN's name. It makes calls fail as a test requests. It has only the
/// functions that kernels/cudnn calls.
namespace lockstep::testing {

/// Makes the n-th call of cudnnBackendFinalize() from now, for a descriptor of this type, return `status` and do
/// nothing. n = 1: the next call. n = 0: no call fails.
extern "C" void failing_cudnn_fail(cudnnBackendDescriptorType_t type, int n, cudnnStatus_t status);
/// Returns the number of cudnnBackendFinalize() calls since failing_cudnn_fail(), for the type passed to that function.
extern "C" int failing_cudnn_finalised(void);

}  // namespace lockstep::testing
