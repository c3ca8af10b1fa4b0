/* What the programs of this folder share: each drives one engine through the engine's own interface, with nothing of the server around
 * it, as often as standard input asks, and tells what that took.
 *
 *   run ROWS TIMES      calls the engine TIMES times, each time with the next ROWS rows; answers "<wall ns> <CPU ns>" of all calls
 *   rest TIMES US       the same for one row, after US microseconds of sleep each, which are not counted
 *   save FILE           calls it once with all rows and writes the answers to the file; answers "saved"
 *
 * CPU is that of all threads of the process. The first line that a program writes, when it is ready, is "ready". */

#ifndef LOOP_H
#define LOOP_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the process with a line that says why. */
static inline void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why != NULL ? why : "failed");
  exit(1);
}

/* A file as it is. */
static inline char* content_of(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  char* bytes;
  if (file == NULL) fail(path, "cannot be opened");
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  /* Aligned as engines like it. */
  bytes = (char*)aligned_alloc(64, (*size + 64) / 64 * 64);
  if (bytes == NULL || fread(bytes, 1, *size, file) != *size) fail(path, "cannot be read");
  fclose(file);
  return bytes;
}

static inline void* library_at(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail(path, dlerror());
  return library;
}

static inline void* symbol_of(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == NULL) fail(name, dlerror());
  return symbol;
}

static inline long long now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* One call of the engine: rows `first` to `first + count`, whose answers go to `answers`. */
typedef void (*call_function)(size_t first, size_t count, char* answers);

/* Does what standard input says until it ends. `row_count` rows are there, each with so many bytes of answers. */
static inline int attend(call_function call, size_t row_count, size_t answer_bytes) {
  char line[4096], path[4000];
  char* answers = (char*)malloc(row_count * answer_bytes + 1);
  if (answers == NULL) fail("answers", "no memory");
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    long long rows = 1, times, sleep_us = 0, wall = 0, cpu = 0, index, first = 0;
    if (sscanf(line, "save %3999[^\n]", path) == 1) {
      FILE* file = fopen(path, "wb");
      call(0, row_count, answers);
      if (file == NULL || fwrite(answers, answer_bytes, row_count, file) != row_count) fail(path, "cannot be written");
      fclose(file);
      printf("saved\n");
    } else if (sscanf(line, "run %lld %lld", &rows, &times) == 2) {
      if (rows < 1 || rows > (long long)row_count) fail(line, "no so many rows");
      wall = -now_ns(CLOCK_MONOTONIC);
      cpu = -now_ns(CLOCK_PROCESS_CPUTIME_ID);
      for (index = 0; index < times; index++) {
        if (first + rows > (long long)row_count) first = 0;
        call((size_t)first, (size_t)rows, answers);
        first += rows;
      }
      cpu += now_ns(CLOCK_PROCESS_CPUTIME_ID);
      wall += now_ns(CLOCK_MONOTONIC);
      printf("%lld %lld\n", wall, cpu);
    } else if (sscanf(line, "rest %lld %lld", &times, &sleep_us) == 2) {
      struct timespec pause = {0, sleep_us * 1000};
      for (index = 0; index < times; index++) {
        nanosleep(&pause, NULL);
        wall -= now_ns(CLOCK_MONOTONIC);
        cpu -= now_ns(CLOCK_PROCESS_CPUTIME_ID);
        call((size_t)index % row_count, 1, answers);
        cpu += now_ns(CLOCK_PROCESS_CPUTIME_ID);
        wall += now_ns(CLOCK_MONOTONIC);
      }
      printf("%lld %lld\n", wall, cpu);
    } else {
      fail(line, "is no command");
    }
    fflush(stdout);
  }
  return 0;
}

#ifdef __cplusplus
}
#endif

#endif
