#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace lockstep {

/// The right to use a GPU, among programs that take claims. A claim is an flock() on a file named after the GPU's UUID,
/// in one folder of the machine. A claim ends with this object or with the process, however the process ends; so a
/// claim is never stale. Programs that take no claims can still use the GPU; find_usable_gpus() recognises such
/// programs by the memory that they use.
///
/// The folder is $LOCKSTEP_CLAIM_FOLDER if set, otherwise /tmp/lockstep-claims. TMPDIR is ignored, because it often
/// differs from job to job. If the folder is missing, it is made with write permission for all users and the sticky
/// bit. All users can open the files in it, and no file is deleted. Containers and jobs with their own /tmp need
/// LOCKSTEP_CLAIM_FOLDER on a shared folder. If a clean-up of /tmp deletes the file of a claim, another process can
/// claim the same GPU.
///
/// A program started with exec() does not inherit a claim. After a plain fork(), parent and child share the claim,
/// which ends with the parent's object, or when both processes have ended.
///
/// Not thread-safe, but different objects are independent. Two claims to one GPU exclude each other, also in one
/// process.
class GpuClaim {
 public:
  struct Attempt;
  /// Takes the claim, or returns the holder's name if another process has it; does not wait. `name` is a UUID of
  /// letters, digits and '-'; UsageError for other characters. Throws DeviceError, with folder and reason, if the
  /// folder or file cannot be used.
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
  int file_ = -1;  ///< descriptor of the locked file; -1 after a move
  pid_t owner_ = 0;
  std::string name_;
};

struct GpuClaim::Attempt {
  std::optional<GpuClaim> claim{};
  /// The claim's holder if `claim` is empty: "pid 4711 on node3, user 1000", or "a process that is not known".
  std::string holder{};
};

/// Returns $LOCKSTEP_CLAIM_FOLDER if set, otherwise /tmp/lockstep-claims. Throws UsageError for a relative path.
[[nodiscard]] std::string default_claim_folder();

}  // namespace lockstep
