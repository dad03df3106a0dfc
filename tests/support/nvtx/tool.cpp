#include "tests/support/nvtx/tool.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>

#include <nvtx3/nvToolsExt.h>

namespace {

using lockstep::testing::ToolEvent;
using lockstep::testing::ToolRecord;

ToolRecord record;

nvtxDomainHandle_t handle() {
  return reinterpret_cast<nvtxDomainHandle_t>(&record);
}

void expect(bool holds) {
  record.faults += holds ? 0 : 1;
}

template <int Length>
void put(char (&to)[Length], const char* text) {
  std::strncpy(to, text, Length - 1);
}

void add(ToolEvent::What what, nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  expect(domain == handle());
  const int at = record.events.fetch_add(1);
  if (at >= ToolRecord::kMostEvents) {
    record.events = ToolRecord::kMostEvents;
    ++record.faults;
    return;
  }
  ToolEvent& kept = record.event[at];
  kept.what = what;
  kept.thread = pthread_self();
  if (event == nullptr) {
    return;
  }
  expect(event->version == NVTX_VERSION && event->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE &&
         event->messageType == NVTX_MESSAGE_TYPE_REGISTERED && event->message.registered != nullptr &&
         event->colorType == NVTX_COLOR_ARGB);
  kept.name = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED
                  ? static_cast<int>(reinterpret_cast<std::uintptr_t>(event->message.registered)) - 1
                  : -1;
  kept.category = event->category;
  kept.colour = event->color;
  kept.number = event->payloadType == NVTX_PAYLOAD_TYPE_INT64 ? event->payload.llValue : 0;
}

nvtxDomainHandle_t create(const char* name) {
  ++record.domains;
  put(record.domain, name);
  return handle();
}

void name_category(nvtxDomainHandle_t domain, std::uint32_t category, const char* name) {
  expect(domain == handle() && category < ToolRecord::kMostCategories);
  if (category < ToolRecord::kMostCategories) {
    put(record.category[category], name);
  }
}

nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char* text) {
  expect(domain == handle());
  const int at = record.names.fetch_add(1);
  if (at >= ToolRecord::kMostNames) {
    record.names = ToolRecord::kMostNames;
    ++record.faults;
    return nullptr;
  }
  put(record.name[at], text);
  return reinterpret_cast<nvtxStringHandle_t>(static_cast<std::uintptr_t>(at) + 1);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  add(ToolEvent::What::enter, domain, event);
  return 0;
}

int pop(nvtxDomainHandle_t domain) {
  add(ToolEvent::What::leave, domain, nullptr);
  return 0;
}

void mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  add(ToolEvent::What::mark, domain, event);
}

/// Writes the ranges of the thread of the first event to the file $LOCKSTEP_RANGES.PID. PID is this process's number.
__attribute__((destructor)) void write_ranges() {
  const char* path = std::getenv("LOCKSTEP_RANGES");
  if (path == nullptr || record.events == 0) {
    return;
  }
  FILE* file = std::fopen((std::string(path) + "." + std::to_string(::getpid())).c_str(), "w");
  if (file == nullptr) {
    return;
  }
  for (const std::string& line : lockstep::testing::ranges_of_thread(record, 0, record.event[0].thread)) {
    std::fprintf(file, "%s\n", line.c_str());
  }
  std::fprintf(file, "faults %d\n", record.faults.load());
  std::fclose(file);
}

}  // namespace

extern "C" const ToolRecord* lockstep_tool_record() {
  return &record;
}

/// The function that NVTX looks for in the library of a tool.
extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr || callbacks->struct_size < sizeof(NvtxExportTableCallbacks)) {
    return 0;
  }
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 || size < NVTX_CBID_CORE2_SIZE) {
    return 0;
  }
  const auto set = [table](NvtxCallbackIdCore2 id, auto* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  set(NVTX_CBID_CORE2_DomainCreateA, create);
  set(NVTX_CBID_CORE2_DomainNameCategoryA, name_category);
  set(NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
  set(NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(NVTX_CBID_CORE2_DomainRangePop, pop);
  set(NVTX_CBID_CORE2_DomainMarkEx, mark);
  return 1;
}
