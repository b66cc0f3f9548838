// A device of torch's PrivateUse1 (or the kind that $FARM_DEVICE_KIND names: xpu) that is the CPU's memory: every operator runs the CPU's kernel on
// the same bytes.
//
// A tensor of the device has a storage of its own kind over memory of the CPU. A boxed fallback makes tensors of the CPU over the
// same bytes, calls the operator, and gives its results, views among them, back as tensors of the device. Loaded with
// torch.ops.load_library; `tests/plugin/planted_device.py` gives it its module in Python.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <cstdlib>
#include <unordered_map>
#include <vector>

namespace {

constexpr auto kIndex = 0;
const char* kind = std::getenv("FARM_DEVICE_KIND");
const auto kDevice = c10::Device(kind ? kind : "privateuseone").type();
const auto kKey = kDevice == c10::DeviceType::CUDA  ? c10::DispatchKey::CUDA
                  : kDevice == c10::DeviceType::XPU ? c10::DispatchKey::XPU
                  : kDevice == c10::DeviceType::HPU ? c10::DispatchKey::HPU
                                                    : c10::DispatchKey::PrivateUse1;

void release(void* kept) { delete static_cast<c10::Storage*>(kept); }

// The same bytes as another device's; `owner` lives as long as they are used.
c10::DataPtr shared(void* bytes, const c10::Storage& owner, c10::Device device) {
  return c10::DataPtr(bytes, new c10::Storage(owner), &release, device);
}

// Pieces of the device's memory that this process was given.
long long handed_out = 0;

c10::Storage over(const c10::Storage& owner, c10::Device device) {
  handed_out += device.type() == kDevice;
  return c10::Storage(c10::Storage::use_byte_size_t(), owner.nbytes(),
                      shared(const_cast<void*>(owner.data()), owner, device), c10::GetCPUAllocator(), true);
}

at::Tensor like(const at::Tensor& other, const c10::Storage& storage, c10::DispatchKey key) {
  auto keys = c10::DispatchKeySet({key, c10::getAutogradKeyFromBackend(c10::toBackendComponent(key)),
                                   c10::DispatchKey::ADInplaceOrView});
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, other.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  if (other.is_conj()) impl->_set_conj(true);
  if (other.is_neg()) impl->_set_neg(true);
  return made;
}

// One call: tensors of the device and those of the CPU that stand for them.
struct Call {
  struct Pair {
    at::Tensor own, cpu;
    const c10::StorageImpl* before;
    const void* bytes;
  };
  std::vector<Pair> pairs;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> to_cpu, to_own;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> given;
  bool on_device = false;

  at::Tensor there(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kDevice) {
      given.emplace(tensor.unsafeGetTensorImpl(), tensor);
      return tensor;
    }
    on_device = true;
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "not implemented for 'memory': layout ", tensor.layout());
    for (auto& pair : pairs)
      if (pair.own.is_same(tensor)) return pair.cpu;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    if (!to_cpu.count(storage)) {
      auto made = over(tensor.storage(), c10::Device(c10::kCPU));
      to_own.emplace(made.unsafeGetStorageImpl(), tensor.storage());
      to_cpu.emplace(storage, made);
    }
    auto cpu = like(tensor, to_cpu.at(storage), c10::DispatchKey::CPU);
    const auto* its = cpu.storage().unsafeGetStorageImpl();
    pairs.push_back({tensor, cpu, its, its->data()});
    given.emplace(cpu.unsafeGetTensorImpl(), tensor);
    return cpu;
  }

  c10::Storage own_storage(const c10::Storage& cpu) {
    const auto* impl = cpu.unsafeGetStorageImpl();
    if (!to_own.count(impl)) to_own.emplace(impl, over(cpu, c10::Device(kDevice, kIndex)));
    return to_own.at(impl);
  }

  at::Tensor back(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (auto found = given.find(tensor.unsafeGetTensorImpl()); found != given.end()) return found->second;
    if (!on_device || tensor.device().type() != c10::kCPU) return tensor;
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "not implemented for 'memory': layout ", tensor.layout());
    return like(tensor, own_storage(tensor.storage()), kKey);
  }

  // What an operator did to its arguments beside their bytes: resize_, set_, out=.
  void settle() {
    for (auto& pair : pairs) {
      auto* own = pair.own.unsafeGetTensorImpl();
      const auto* now = pair.cpu.storage().unsafeGetStorageImpl();
      if (now != pair.before) {
        own->set_storage_keep_dtype(own_storage(pair.cpu.storage()));
      } else if (now->data() != pair.bytes || now->nbytes() != pair.own.storage().nbytes()) {
        auto storage = pair.own.storage();
        storage.set_data_ptr_noswap(shared(const_cast<void*>(now->data()), pair.cpu.storage(), c10::Device(kDevice, kIndex)));
        storage.set_nbytes(now->nbytes());
      }
      if (pair.cpu.sizes() != pair.own.sizes() || pair.cpu.strides() != pair.own.strides() ||
          pair.cpu.storage_offset() != pair.own.storage_offset())
        own->set_sizes_and_strides(pair.cpu.sizes(), pair.cpu.strides(), pair.cpu.storage_offset());
    }
  }
};

template <class Change>
c10::IValue changed(const c10::IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    auto made = c10::List<at::Tensor>();
    for (const at::Tensor& x : value.toTensorVector()) made.push_back(change(x));
    return made;
  }
  if (value.isOptionalTensorList()) {
    auto made = c10::List<std::optional<at::Tensor>>();
    for (const std::optional<at::Tensor>& x : value.toOptionalTensorList())
      made.push_back(x.has_value() ? std::optional<at::Tensor>(change(*x)) : std::nullopt);
    return made;
  }
  return value;
}

// $FARM_DEVICE_SPOILT_BY names an operator after which the device of this process computes nothing any more, $FARM_DEVICE_SAYS the
// words of its error.
bool spoilt = false;

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const char* spoils = std::getenv("FARM_DEVICE_SPOILT_BY");
  if (spoils && op.schema().name() == spoils) spoilt = true;
  static const char* says = std::getenv("FARM_DEVICE_SAYS");
  TORCH_CHECK(!spoilt, says ? says : "aicore exception, error code is 507015", " in ", op.schema().name());
  Call call;
  const auto count = op.schema().arguments().size();
  const auto begin = stack->size() - count;
  for (auto i = begin; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isDevice() && value.toDevice().type() == kDevice) {
      call.on_device = true;
      value = c10::Device(c10::kCPU);
    } else {
      value = changed(value, [&](const at::Tensor& x) { return call.there(x); });
    }
  }
  // Below autograd's keys, which this call has passed. A convolution comes by the name of what a plugin has to give.
  const auto& run = op.schema().name() == "aten::convolution_overrideable"
                        ? c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "")
                        : op;
  run.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.settle();
  const auto results = op.schema().returns().size();
  for (auto i = stack->size() - results; i < stack->size(); i++)
    (*stack)[i] = changed((*stack)[i], [&](const at::Tensor& x) { return call.back(x); });
}

struct Hooks : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return kIndex; }
};

template <c10::DeviceType type>
struct Guard final : c10::impl::NoOpDeviceGuardImpl<type> {
  c10::Device getDevice() const override { return c10::Device(type, kIndex); }
  c10::Device exchangeDevice(c10::Device) const override { return c10::Device(type, kIndex); }
  // Of the device by its number: autograd looks streams up by it.
  c10::Stream getStream(c10::Device) const noexcept override { return only(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only(); }
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(type, kIndex)); }
  // All is done when a call returns: nothing is waited for.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

template <c10::DeviceType... types>
void guard() {
  ((kDevice == types ? c10::impl::DeviceGuardImplRegistrar(types, new Guard<types>) , void() : void()), ...);
}

auto* library(const char* names) { return new torch::Library(torch::Library::IMPL, names, kKey, __FILE__, __LINE__); }

const bool registered = [] {
  static Hooks hooks;
  if (kDevice == c10::DeviceType::PrivateUse1) at::RegisterPrivateUse1HooksInterface(&hooks);
  guard<c10::DeviceType::PrivateUse1, c10::DeviceType::CUDA, c10::DeviceType::XPU, c10::DeviceType::HPU>();
  library("_")->fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  // Those that have a kernel for every device, which would not do here.
  auto* aten = library("aten");
  for (const char* name : {"copy_", "empty.memory_format", "empty_strided", "resize_", "set_.source_Storage_storage_offset",
                           "convolution_overrideable", "native_layer_norm"})
    aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  return true;
}();

}  // namespace

extern "C" long long farm_handed_out() { return handed_out; }
