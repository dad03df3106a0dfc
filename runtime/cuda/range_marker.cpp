// Implements named ranges for Nsight Systems and other tools with NVTX. NVTX is a header that loads the attached tool's
// library at the first call.
#include <lockstep/runtime/detail/range_marker.hpp>

#include <array>
#include <cstddef>
#include <vector>

#include <nvtx3/nvToolsExt.h>

namespace lockstep::detail {

namespace {

/// Colours of a tool's ranges (ARGB), in the order of SpanKind.
constexpr std::array<std::uint32_t, 13> kColours{
    0xFF4E79A7,  // forward
    0xFF59A14F,  // backward
    0xFFB07AA1,  // update
    0xFF9C755F,  // input
    0xFF499894,  // graph
    0xFFF1CE63,  // ready
    0xFFF28E2B,  // reduce
    0xFFFFBE7D,  // gather
    0xFFE15759,  // wait
    0xFFFF9D9A,  // batch
    0xFF86BCB6,  // evaluation
    0xFFD37295,  // checkpoint
    0xFFBAB0AC,  // step
};
static_assert(kColours.size() == static_cast<std::size_t>(SpanKind::step) + 1);

/// Returns the number of the NVTX category for spans of kind `kind`. The numbers begin at 1.
std::uint32_t category_of(SpanKind kind) {
  return static_cast<std::uint32_t>(kind) + 1;
}

/// Returns the NVTX domain; nullptr if no tool is attached. The first call creates the domain, and nothing destroys it,
/// because a tool may have only one handle for all domains with the same name.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t ours = [] {
    const nvtxDomainHandle_t made = nvtxDomainCreateA("lockstep");
    if (made != nullptr) {
      for (std::size_t kind = 0; kind < kColours.size(); ++kind) {
        nvtxDomainNameCategoryA(made, category_of(static_cast<SpanKind>(kind)), name_of(static_cast<SpanKind>(kind)));
      }
    }
    return made;
  }();
  return ours;
}

class NvtxMarker final : public RangeMarker {
 public:
  explicit NvtxMarker(nvtxDomainHandle_t domain) : domain_(domain) {}

  void add(const SpanRecorder::Name& name) override {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.category = category_of(name.kind);
    event.colorType = NVTX_COLOR_ARGB;
    event.color = kColours[static_cast<std::size_t>(name.kind)];
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain_, name.text.c_str());
    set_number(event, name.bytes);
    events_.push_back(event);
  }

  void enter(int name, std::int64_t number) noexcept override {
    nvtxEventAttributes_t event = events_[static_cast<std::size_t>(name)];
    set_number(event, number);
    nvtxDomainRangePushEx(domain_, &event);
  }
  void leave() noexcept override { nvtxDomainRangePop(domain_); }
  void mark(int name) noexcept override { nvtxDomainMarkEx(domain_, &events_[static_cast<std::size_t>(name)]); }

 private:
  static void set_number(nvtxEventAttributes_t& event, std::int64_t number) {
    if (number != 0) {
      event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
      event.payload.llValue = number;
    }
  }

  nvtxDomainHandle_t domain_;
  std::vector<nvtxEventAttributes_t> events_;  ///< attributes of ranges, indexed by the number of the name
};

}  // namespace

std::unique_ptr<RangeMarker> make_range_marker() {
  const nvtxDomainHandle_t ours = domain();
  return ours == nullptr ? nullptr : std::make_unique<NvtxMarker>(ours);
}

}  // namespace lockstep::detail
