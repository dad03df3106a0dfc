#pragma once

#include <cudnn.h>

/// The real cuDNN under the name by which it is loaded. It fails when a test asks for it, and has only the calls of
/// kernels/cudnn.
namespace lockstep::testing {

/// From now on, makes the n-th cudnnBackendFinalize() of a descriptor of this type (1 is the next) answer with `status`
/// and do nothing; 0: none fails.
extern "C" void failing_cudnn_fail(cudnnBackendDescriptorType_t type, int n, cudnnStatus_t status);
/// Returns how many descriptors of this type were to be finalised since failing_cudnn_fail().
extern "C" int failing_cudnn_finalised(void);

}  // namespace lockstep::testing
