/* What the programs share that drive an engine in a closed loop of whole batches, as often as standard input asks:
 *
 *   run MEMORY ROWS LANES MS     calls the engine with so many rows at a time for about MS milliseconds, by LANES threads at once, each with
 *                                memory of its own; answers "<batches> <wall ns> <CPU ns>"
 *   save MEMORY ROWS FILE        calls it once and writes the answers to the file; answers "saved"
 *
 * MEMORY is "host", for inputs that lie in main memory and answers that are wanted there, or "device". CPU is that of all threads of the
 * process. The first line that a program writes, when it is ready, is "ready". */

#ifndef BATCHES_H
#define BATCHES_H

#include <pthread.h>

#include "loop.h"

#define LANES 4

typedef enum { HOST, DEVICE } Memory;

/* A thread's part: has the engine compute one batch, and returns when its answers are there. */
typedef void (*batch_function)(size_t lane, Memory memory, size_t rows);
/* The answers of the lane's last batch, in main memory. */
typedef const char* (*answers_function)(size_t lane, Memory memory, size_t rows);

typedef struct {
  pthread_t thread;
  batch_function call;
  size_t lane, rows;
  Memory memory;
  long long until_ns, batches;
} Turn;

static inline void* take_turn(void* given) {
  Turn* turn = (Turn*)given;
  do {
    turn->call(turn->lane, turn->memory, turn->rows);
    turn->batches++;
  } while (now_ns(CLOCK_MONOTONIC) < turn->until_ns);
  return NULL;
}

static inline Memory memory_of(const char* word) {
  if (strcmp(word, "host") != 0 && strcmp(word, "device") != 0) fail(word, "is no memory");
  return strcmp(word, "host") == 0 ? HOST : DEVICE;
}

/* Does what standard input says until it ends. `row_bytes`: of the answers to one row. */
static inline int attend_batches(batch_function call, answers_function answers, size_t rows_max, size_t row_bytes) {
  char line[4096], word[8], path[4000];
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    Turn turns[LANES];
    size_t rows, lanes;
    long long milliseconds, batches = 0;
    if (sscanf(line, "save %7s %zu %3999[^\n]", word, &rows, path) == 3 && rows >= 1 && rows <= rows_max) {
      Memory memory = memory_of(word);
      FILE* file = fopen(path, "wb");
      call(0, memory, rows);
      if (file == NULL || fwrite(answers(0, memory, rows), row_bytes, rows, file) != rows) fail(path, "cannot be written");
      fclose(file);
      printf("saved\n");
    } else if (sscanf(line, "run %7s %zu %zu %lld", word, &rows, &lanes, &milliseconds) == 4 && rows >= 1 && rows <= rows_max &&
               lanes >= 1 && lanes <= LANES) {
      /* Once before the clock runs: what is made of a first batch does not count. */
      for (size_t lane = 0; lane < lanes; lane++) call(lane, memory_of(word), rows);
      long long wall = -now_ns(CLOCK_MONOTONIC), cpu = -now_ns(CLOCK_PROCESS_CPUTIME_ID);
      for (size_t lane = 0; lane < lanes; lane++) {
        Turn turn = {0, call, lane, rows, memory_of(word), -wall + milliseconds * 1000000, 0};
        turns[lane] = turn;
        if (pthread_create(&turns[lane].thread, NULL, take_turn, &turns[lane]) != 0) fail("a thread", "cannot be started");
      }
      for (size_t lane = 0; lane < lanes; lane++) {
        pthread_join(turns[lane].thread, NULL);
        batches += turns[lane].batches;
      }
      wall += now_ns(CLOCK_MONOTONIC);
      cpu += now_ns(CLOCK_PROCESS_CPUTIME_ID);
      printf("%lld %lld %lld\n", batches, wall, cpu);
    } else {
      fail(line, "is no command");
    }
    fflush(stdout);
  }
  return 0;
}

#endif
