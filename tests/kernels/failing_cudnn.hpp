#pragma once

#include <cudnn.h>

/// The real cuDNN under the name by which it is loaded, with failures at will. Only what kernels/cudnn calls is there.
namespace lockstep::testing {

/// The n-th cudnnBackendFinalize() of a descriptor of this type from now (1 is the next) answers with `status` and does
/// nothing; 0: none does.
extern "C" void failing_cudnn_fail(cudnnBackendDescriptorType_t type, int n, cudnnStatus_t status);
/// How many descriptors of this type were to be finalised since failing_cudnn_fail().
extern "C" int failing_cudnn_finalised(void);

}  // namespace lockstep::testing
