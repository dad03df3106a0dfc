#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace lockstep {

/// The right to use a GPU, among programs that use claims: an flock() on a file named after the GPU's UUID, in one
/// folder of the machine. A claim ends with this object or with the process, however the process ends, so a claim is
/// never stale. Other programs are not held back; find_usable_gpus() recognises them by the memory they use.
///
/// The folder is $LOCKSTEP_CLAIM_FOLDER, else /tmp/lockstep-claims. A missing folder is made sticky and open to all
/// users; so are its files, which stay. TMPDIR is ignored, because it often differs from job to job. Containers and
/// jobs with their own /tmp need LOCKSTEP_CLAIM_FOLDER on a shared folder. When a clean-up deletes the file of a claim,
/// that claim no longer holds others back.
///
/// A program started with exec() does not inherit a claim. After a plain fork() parent and child share it: it ends with
/// the parent's object, or when both processes have ended.
///
/// Not thread-safe; different objects are independent. Two claims to one GPU exclude each other within one process too.
class GpuClaim {
 public:
  struct Attempt;
  /// Takes the claim, or names its holder, without waiting. name: a UUID of letters, digits and '-', else UsageError.
  /// DeviceError, with the folder and the reason, when the folder or file cannot be used.
  [[nodiscard]] static Attempt attempt(const std::string& folder, const std::string& name);

  GpuClaim(GpuClaim&& other) noexcept;
  GpuClaim& operator=(GpuClaim&& other) noexcept;
  GpuClaim(const GpuClaim&) = delete;
  GpuClaim& operator=(const GpuClaim&) = delete;
  ~GpuClaim();

  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  GpuClaim(int file, std::string name);
  void release() noexcept;
  int file_ = -1;  ///< -1: moved from
  pid_t owner_ = 0;
  std::string name_;
};

struct GpuClaim::Attempt {
  std::optional<GpuClaim> claim{};
  std::string holder{};  ///< without a claim: "pid 4711 on node3, user 1000", or "a process that is not known"
};

/// $LOCKSTEP_CLAIM_FOLDER, else /tmp/lockstep-claims. UsageError for a relative path.
[[nodiscard]] std::string default_claim_folder();

}  // namespace lockstep
