#include <lockstep/c/tape.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/context.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/c/handles.hpp>
#include <lockstep/c/trainer.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/plan/choice_verifier.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/sync_guard.hpp>

namespace lockstep::c {
namespace {

constexpr std::size_t kOldestOptions = sizeof(lockstep_tape_options);

lockstep_tape_options default_options() {
  lockstep_tape_options options{};
  options.struct_size = sizeof(options);
  options.slots = 1;
  return options;
}

nn::TapeOptions tape_options(const lockstep_tape_options& o, DType dtype) {
  require<UsageError>(o.max_batch >= 1, "options: max_batch is ", o.max_batch, ", expected at least 1");
  require<UsageError>(o.slots >= 1, "options: slots is ", o.slots, ", expected at least 1");
  return {.max_batch = o.max_batch,
          .slots = o.slots,
          .plan = {.dtype = dtype,
                   .recompute = flag_of(o.recompute, "options: recompute") ? nn::Recompute::blocks : nn::Recompute::off,
                   .verifier = nn::ChoiceVerifier::from_environment()}};
}

/// A view of the caller, and the letters of its axes; nothing for NULL.
struct Given {
  TensorView view{};
  std::string_view axes{};
};

Given input_of(const lockstep_view* view, Device device, const char* name) {
  return {view_of(view, device, name), axes_of(given(view, name))};
}

Given output_or_none(const lockstep_view* view, Device device, const char* name) {
  return view == nullptr ? Given{} : Given{output_of(view, device, name), axes_of(*view)};
}

/// Waits for copies from and to host memory, which belongs to the caller again after the call, also after an error.
class HostCopies {
 public:
  HostCopies(const ContextObject& context, const Given& first, const Given& second) : context_(*context.context) {
    const auto on_host = [](const Given& each) {
      return each.view.given() && each.view.device.kind == DeviceKind::cpu;
    };
    if (context.device().kind == DeviceKind::cuda && (on_host(first) || on_host(second))) {
      idle_.emplace(context_.stream());
    }
  }
  void wait() {
    if (idle_) {
      context_.synchronize();
    }
  }

 private:
  Context& context_;
  std::optional<SyncGuard> idle_;
};

}  // namespace
}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_tape_options_init(lockstep_tape_options* options, size_t size) noexcept {
  return entry("lockstep_tape_options_init",
               [&] { write_options(options, size, default_options(), kOldestOptions, "options"); });
}

lockstep_status lockstep_tape_create(lockstep_model model, const lockstep_tape_options* options,
                                     lockstep_tape* tape) noexcept {
  return entry("lockstep_tape_create", [&] {
    given(tape, "tape") = nullptr;
    const ModelObject& m = object_of(model);
    Learned& learned = m.finished();
    const ContextObject::Use use(*m.context);
    static_cast<void>(given(options, "options"));
    const lockstep_tape_options o = read_options(options, default_options(), kOldestOptions, "options");
    nn::TapeOptions made_of = tape_options(o, m.dtype);
    auto made = std::make_shared<TapeObject>();
    made->learned = m.learned;
    made->context = m.context;
    require<UnsupportedError>(m.context == learned.context || learned.parameters.buffer_arena().numel() == 0,
                              "the model has batch norm and shares another one's parameters: tapes of two contexts "
                              "would write the same running statistics");
    const std::shared_ptr<TrainerObject> trainer = learned.trainer.lock();
    const comm::Communicator* ranks = trainer != nullptr ? &trainer->control() : nullptr;
    made_of.stream = learned.tapes++ * (ranks != nullptr ? ranks->size() : 1) + (ranks != nullptr ? ranks->rank() : 0);
    if (flag_of(o.own_gradients, "options: own_gradients")) {
      const TensorView like = learned.parameters.gradients();
      made->own = Buffer(like.bytes(), *m.context->context);
      made->gradients = TensorView(made->own.data(), like.dtype, like.device, like.shape);
      ops::fill(*m.context->context, 0, made->gradients);
      made_of.gradients = made->gradients;
    } else {
      require<StateError>(trainer != nullptr && trainer->options.loss == LOCKSTEP_LOSS_GIVEN,
                          "the model has no trainer of LOCKSTEP_LOSS_GIVEN, expected one before, or own_gradients 1");
      require<UsageError>(m.context == learned.context,
                          "the model shares another one's parameters, expected own_gradients 1");
      made->trainer = trainer;
    }
    made->tape = std::make_unique<nn::Tape>(*m.context->context, m.reshaped ? *m.reshaped : learned.model,
                                            learned.parameters, made_of);
    *tape = make_handle<lockstep_tape>(std::move(made));
  });
}

lockstep_status lockstep_tape_forward(lockstep_tape tape, const lockstep_view* in, const lockstep_view* out,
                                      int64_t* pass, lockstep_stream stream) noexcept {
  return entry("lockstep_tape_forward", [&] {
    TapeObject& t = object_of(tape);
    const ContextObject::Use use(*t.context);
    const Device device = t.context->device();
    const Given from = input_of(in, device, "in");
    const Given to = output_or_none(out, device, "out");
    static_cast<void>(given(pass, "pass"));
    HostCopies copies(*t.context, from, to);
    ContextObject::Call call(*t.context, stream);
    *pass = t.tape->forward(from.view, to.view, from.axes, to.axes);
    call.end();
    copies.wait();
  });
}

lockstep_status lockstep_tape_backward(lockstep_tape tape, int64_t pass, const lockstep_view* out_gradient,
                                       const lockstep_view* in_gradient, lockstep_stream stream) noexcept {
  return entry("lockstep_tape_backward", [&] {
    TapeObject& t = object_of(tape);
    const ContextObject::Use use(*t.context);
    const Device device = t.context->device();
    const Given from = input_of(out_gradient, device, "out_gradient");
    const Given to = output_or_none(in_gradient, device, "in_gradient");
    t.tape->check(pass, from.view, to.view, from.axes, to.axes);
    if (t.own.bytes() == 0) {
      static_cast<void>(t.trainer->step->given_gradients());
      t.trainer->has_gradients = false;
    }
    HostCopies copies(*t.context, from, to);
    ContextObject::Call call(*t.context, stream);
    t.tape->backward(pass, from.view, to.view, from.axes, to.axes);
    call.end();
    copies.wait();
  });
}

lockstep_status lockstep_tape_release(lockstep_tape tape, int64_t pass) noexcept {
  return entry("lockstep_tape_release", [&] {
    TapeObject& t = object_of(tape);
    const ContextObject::Use use(*t.context);
    t.tape->release(pass);
  });
}

lockstep_status lockstep_tape_destroy(lockstep_tape tape) noexcept {
  return entry("lockstep_tape_destroy", [&] { destroy(tape); });
}
