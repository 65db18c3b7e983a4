// A device guard for CUDA in a CPU build of torch. There is one device, so a switch to it does nothing.
// Python's indexing asks for a guard of the tensor's device; a CPU build has none.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kind = c10::DeviceType::CUDA;
  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device) const override { return {kind, 0}; }
  c10::Device getDevice() const override { return {kind, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

struct Registration {
  Registration() { c10::impl::device_guard_impl_registry[static_cast<size_t>(Guard::kind)].store(new Guard()); }
} registration;
}  // namespace
