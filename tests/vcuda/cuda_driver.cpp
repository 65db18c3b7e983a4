// CUDA's driver library (libcuda.so.1) for two devices that run nothing: 0 is an H100, 1 an A100. Triton's own launcher
// links it. It refuses what CUDA refuses: an image that is no CUDA binary, a kernel that the image lacks, memory of the
// host, grids and blocks beyond the limits. `num_launches` counts what CUDA would have started.
#include <cuda.h>
#include <elf.h>

#include <cstring>
#include <string>

namespace {
constexpr CUdeviceptr kDeviceMemory = CUdeviceptr{1} << 46;  // launcher.py gives device memory such addresses
constexpr int kElfMachineCuda = 190;
struct Limits {
  int shared_optin, shared_total, processors;
};
constexpr Limits kLimits[] = {{232448, 233472, 132}, {166912, 167936, 108}};
CUcontext current = nullptr;
unsigned long long launches = 0;

std::string ImageOf(const void* data) {
  const auto* header = static_cast<const Elf64_Ehdr*>(data);
  const size_t sections = header->e_shoff + size_t{header->e_shnum} * header->e_shentsize;
  const size_t segments = header->e_phoff + size_t{header->e_phnum} * header->e_phentsize;
  return {static_cast<const char*>(data), sections > segments ? sections : segments};
}
}  // namespace

extern "C" {
unsigned long long num_launches() { return launches; }

CUresult CUDAAPI cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) { return *context = current, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return *context = reinterpret_cast<CUcontext>(uintptr_t{1} + device), CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit) { return *value = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const Limits& limits = kLimits[device];
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = limits.shared_optin; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = limits.shared_total; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = limits.processors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    default: *value = 1;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* data) {
  const auto* header = static_cast<const Elf64_Ehdr*>(data);
  if (std::memcmp(data, ELFMAG, SELFMAG) != 0 || header->e_machine != kElfMachineCuda) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(new std::string(ImageOf(data)));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  *function = reinterpret_cast<CUfunction>(module);
  const auto* image = reinterpret_cast<const std::string*>(module);
  return image->find(std::string(".text.") + name) == std::string::npos ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr pointer) {
  *static_cast<CUdeviceptr*>(value) = pointer;
  return pointer < kDeviceMemory ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void**) {
  if (config->gridDimX > 0x7fffffffu || config->gridDimY > 0xffffu || config->gridDimZ > 0xffffu ||
      config->blockDimX > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  ++launches;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_IMAGE   ? "device kernel image is invalid"
          : error == CUDA_ERROR_NOT_FOUND     ? "named symbol not found"
          : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                              : "unknown error";
  return CUDA_SUCCESS;
}
}
