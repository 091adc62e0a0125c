// Prints the compute capability of each visible NVIDIA GPU, such as 9.0, one per line, from the driver's library.
#include <dlfcn.h>

#include <cstdio>

namespace {

// Constants of the driver API, copied because its header belongs to the CUDA toolkit.
constexpr int no_device = 100;
constexpr int capability_major = 75;
constexpr int capability_minor = 76;

template <typename... Arguments>
int call(void* driver, const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name));
  return function == nullptr ? -1 : function(arguments...);
}

}  // namespace

int main() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 0;
  int count = 0;
  int failed = call(driver, "cuInit", 0u);
  if (failed == 0) failed = call(driver, "cuDeviceGetCount", &count);
  for (int device = 0; device < count && failed == 0; ++device) {
    int major = 0;
    int minor = 0;
    failed = call(driver, "cuDeviceGetAttribute", &major, capability_major, device);
    if (failed == 0) failed = call(driver, "cuDeviceGetAttribute", &minor, capability_minor, device);
    if (failed == 0) std::printf("%d.%d\n", major, minor);
  }
  if (failed != 0 && failed != no_device) std::printf("error %d\n", failed);
  return 0;
}
