#pragma once

namespace lockstep::testing {

/// The properties of an H100 (SXM, 80 GB), as cuDNN writes them. The names are those of CUDA's attributes.
inline constexpr const char* kH100 = R"({"deviceName": "NVIDIA H100 80GB HBM3", "cudaDeviceId": 0, "deviceVer": 900,
  "multiProcessorCount": 132, "driverVer": 13000, "maxSharedMemoryPerBlockOptin": 232448,
  "totalGlobalMem": 85024112640, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
  "regsPerBlock": 65536, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 52428800,
  "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
  "pciDeviceId": 590352606, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "isTccDriver": 0, "supportCoopLaunch": 1})";

}  // namespace lockstep::testing
