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

constexpr std::size_t kOldestOptions = offsetof(lockstep_tape_options, pass);

lockstep_tape_options default_options() {
  lockstep_tape_options options{};
  options.struct_size = sizeof(options);
  options.slots = 1;
  options.parameter_gradients = 1;
  return options;
}

nn::TapeOptions tape_options(const lockstep_tape_options& o, DType dtype) {
  require<UsageError>(o.max_batch >= 1, "options: max_batch is ", o.max_batch, ", expected at least 1");
  require<UsageError>(o.slots >= 1, "options: slots is ", o.slots, ", expected at least 1");
  require<UsageError>(o.pass == LOCKSTEP_PASS_TRAIN || o.pass == LOCKSTEP_PASS_INFER, "options: pass is ", o.pass,
                      ", expected LOCKSTEP_PASS_TRAIN or LOCKSTEP_PASS_INFER");
  const bool trains = flag_of(o.parameter_gradients, "options: parameter_gradients");
  require<UsageError>(trains || o.own_gradients == 0, "options: own_gradients is ", o.own_gradients,
                      " with parameter_gradients 0, expected own_gradients 0");
  const bool vjp = flag_of(o.vjp, "options: vjp"), jvp = flag_of(o.jvp, "options: jvp");
  require<UsageError>(o.recompute == 0 || (!vjp && !jvp), "options: recompute is ", o.recompute, " with ",
                      vjp ? "vjp" : "jvp", ", expected 0");
  return {.max_batch = o.max_batch,
          .slots = o.slots,
          .plan = {.dtype = dtype,
                   .recompute = flag_of(o.recompute, "options: recompute") ? nn::Recompute::blocks : nn::Recompute::off,
                   .verifier = nn::ChoiceVerifier::from_environment()},
          .inference_pass = o.pass == LOCKSTEP_PASS_INFER,
          .parameter_gradients = trains,
          .vjp = vjp,
          .jvp = jvp};
}

/// A view of the caller, and the letters of its axes; both are empty if the caller passed NULL.
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

/// The destructor waits for copies from and to host memory, also after an error, because the caller may free the memory
/// after the call.
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

/// An argument of the caller and its name for error texts.
struct Argument {
  const lockstep_view* view;
  const char* name;
};

/// Calls compute(tape, from, to) on the caller's stream, with the views that the tape reads and writes.
template <class Compute>
void product(lockstep_tape tape, Argument read, Argument written, lockstep_stream stream, Compute&& compute) {
  TapeObject& t = object_of(tape);
  const ContextObject::Use use(*t.context);
  const Device device = t.context->device();
  const Given from = input_of(read.view, device, read.name);
  const Given to{output_of(written.view, device, written.name), axes_of(given(written.view, written.name))};
  HostCopies copies(*t.context, from, to);
  ContextObject::Call call(*t.context, stream);
  compute(*t.tape, from, to);
  call.end();
  copies.wait();
}

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
    require<UnsupportedError>(
        made_of.inference_pass || m.context == learned.context || learned.parameters.buffer_arena().numel() == 0,
        "the model has batch norm and shares another one's parameters: tapes of two contexts would write the same "
        "running statistics; expected LOCKSTEP_PASS_INFER, or the context of the parameters");
    const std::shared_ptr<TrainerObject> trainer = learned.trainer.lock();
    const comm::Communicator* ranks = trainer != nullptr ? &trainer->control() : nullptr;
    made_of.stream = learned.tapes++ * (ranks != nullptr ? ranks->size() : 1) + (ranks != nullptr ? ranks->rank() : 0);
    if (flag_of(o.own_gradients, "options: own_gradients")) {
      const TensorView like = learned.parameters.gradients();
      made->own = Buffer(like.bytes(), *m.context->context);
      made->gradients = TensorView(made->own.data(), like.dtype, like.device, like.shape);
      ops::fill(*m.context->context, 0, made->gradients);
      made_of.gradients = made->gradients;
    } else if (made_of.parameter_gradients) {
      require<StateError>(trainer != nullptr && trainer->options.loss == LOCKSTEP_LOSS_GIVEN,
                          "the model has no trainer of LOCKSTEP_LOSS_GIVEN, expected one that is made before the tape, "
                          "or own_gradients 1");
      require<UsageError>(m.context == learned.context,
                          "the model shares another one's parameters, expected own_gradients 1");
      made->trainer = trainer;
    }
    made->infers = made_of.inference_pass;
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
    if (t.infers) {
      t.learned->require_statistics();
    }
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
    if (t.trainer != nullptr) {
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

lockstep_status lockstep_tape_vjp(lockstep_tape tape, int64_t pass, const lockstep_view* out_gradient,
                                  const lockstep_view* in_gradient, lockstep_stream stream) noexcept {
  return entry("lockstep_tape_vjp", [&] {
    product(tape, {out_gradient, "out_gradient"}, {in_gradient, "in_gradient"}, stream,
            [pass](nn::Tape& made, const Given& from, const Given& to) {
              made.vjp(pass, from.view, to.view, from.axes, to.axes);
            });
  });
}

lockstep_status lockstep_tape_jvp(lockstep_tape tape, int64_t pass, const lockstep_view* in_tangent,
                                  const lockstep_view* out_tangent, lockstep_stream stream) noexcept {
  return entry("lockstep_tape_jvp", [&] {
    product(tape, {in_tangent, "in_tangent"}, {out_tangent, "out_tangent"}, stream,
            [pass](nn::Tape& made, const Given& from, const Given& to) {
              made.jvp(pass, from.view, to.view, from.axes, to.axes);
            });
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
