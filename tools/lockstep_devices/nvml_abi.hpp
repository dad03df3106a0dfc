#pragma once

/// The part of NVML's binary interface that lockstep-devices uses, as in NVIDIA's nvml.h (version 12), which not every
/// CUDA toolkit installs. Function names include their version, so these layouts hold for drivers of any age.
namespace lockstep::tools::nvml {

using Result = int;  // result of a function; 0 means success
inline constexpr Result kSuccess = 0;
inline constexpr Result kInsufficientSize = 7;

using Device = void*;

struct Memory {  // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct ProcessInfo {  // nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills
  unsigned int pid;
  unsigned long long used_gpu_memory;  // all bits are set if NVML does not know the number
  unsigned int gpu_instance;
  unsigned int compute_instance;
};

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];  // "00000000:3B:00.0"
};

enum ComputeMode : int { kDefault = 0, kExclusiveThread = 1, kProhibited = 2, kExclusiveProcess = 3 };
enum TopologyLevel : int {
  kInternal = 0,     // two GPUs of one board
  kSingle = 10,      // GPUs at one PCIe switch
  kMultiple = 20,    // several PCIe switches between the GPUs
  kHostBridge = 30,  // GPUs at one PCIe host bridge
  kNode = 40,        // GPUs at one NUMA node
  kSystem = 50,
};
enum LinkDevice : int { kGpu = 0, kSwitch = 2 };
inline constexpr int kMemoryClock = 2;  // NVML_CLOCK_MEM
inline constexpr int kPeerRead = 0;     // NVML_P2P_CAPS_INDEX_READ
inline constexpr int kPeerOk = 0;
inline constexpr unsigned int kMaxLinks = 18;  // NVML_NVLINK_MAX_LINKS

}  // namespace lockstep::tools::nvml
