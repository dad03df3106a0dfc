/* Learns y = 3 x - 1 from samples and prints the prediction for x = 2. */
#include <lockstep/lockstep.h>
#include <stdio.h>

#define TRY(call)            \
  if ((call) != LOCKSTEP_OK) \
  return fprintf(stderr, "%s\n", lockstep_last_error()), 1

int main(void) {
  lockstep_context context;
  lockstep_comm ranks; /* one rank; MPI programs call lockstep_comm_from_mpi() of lockstep_mpi.h */
  lockstep_model model;
  lockstep_trainer trainer;
  lockstep_trainer_options options;
  const int64_t widths[] = {1, 1}, samples[] = {4, 1}, one[] = {1, 1};
  double x[] = {-1, 0, 0.5, 2}, y[] = {-4, -1, 0.5, 5}, at = 2, answer = 0;
  lockstep_view in = {x, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, samples, NULL, "nc"};
  lockstep_view target = {y, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, samples, NULL, "nc"};
  lockstep_view point = {&at, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, one, NULL, "nc"};
  lockstep_view result = {&answer, LOCKSTEP_F64, LOCKSTEP_CPU, 0, 2, one, NULL, "nc"};

  TRY(lockstep_context_create(NULL, &context));
  TRY(lockstep_comm_self(context, &ranks));
  TRY(lockstep_model_mlp(context, LOCKSTEP_F64, widths, 2, LOCKSTEP_ACTIVATION_NONE, &model));
  TRY(lockstep_model_initialise(model, 1));
  TRY(lockstep_trainer_options_init(&options, sizeof options));
  options.max_batch = 4;
  TRY(lockstep_trainer_create(model, ranks, &options, &trainer));
  for (int step = 0; step < 2000; ++step) {
    TRY(lockstep_trainer_add(trainer, &in, &target, NULL, NULL));
    TRY(lockstep_trainer_update(trainer, 1e-2));
  }
  TRY(lockstep_infer(model, &point, &result, NULL));
  printf("%.3f\n", answer);
  lockstep_trainer_destroy(trainer); /* in any order */
  lockstep_model_destroy(model);
  lockstep_comm_destroy(ranks);
  lockstep_context_destroy(context);
  return 0;
}
