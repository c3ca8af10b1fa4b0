/* A library to preload under valgrind: a thread waits for its io_uring in poll(2) first. Valgrind before 3.21 takes io_uring_enter(2) for
   a call that does not block, and no other thread runs while one is in it.
   cc -O2 -shared -fPIC -o poll_ring.so tests/e2e/poll_ring.c */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The call itself: libc's syscall(2) is what this library stands before. */
static long call(long number, const long *arguments)
{
    register long r10 __asm__("r10") = arguments[3];
    register long r8 __asm__("r8") = arguments[4];
    register long r9 __asm__("r9") = arguments[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(arguments[0]), "S"(arguments[1]), "d"(arguments[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

static int64_t nanoseconds(const struct timespec *time)
{
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

/* When the call is to end at the latest. */
static int64_t deadline_ns(unsigned flags, long argument)
{
    if (!(flags & IORING_ENTER_EXT_ARG) || argument == 0 || ((const struct io_uring_getevents_arg *)argument)->ts == 0)
        return INT64_MAX;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return nanoseconds(&now) + nanoseconds((const struct timespec *)(uintptr_t)((const struct io_uring_getevents_arg *)argument)->ts);
}

/* Submits, and looks at the ring every millisecond: not every kernel wakes who polls a ring with deferred work. */
static long enter(const long *arguments)
{
    unsigned flags = (unsigned)arguments[3];
    int64_t end_ns = deadline_ns(flags, arguments[4]);
    struct pollfd ring = {.fd = (int)arguments[0], .events = POLLIN};
    long turn[6] = {arguments[0], arguments[1], 0, flags & ~(unsigned)IORING_ENTER_EXT_ARG, 0, 0};
    long submitted = 0;
    for (;;) {
        long result = call(SYS_io_uring_enter, turn);
        if (result < 0)
            return submitted > 0 ? submitted : result;
        submitted += result;
        turn[1] = 0;
        if (poll(&ring, 1, 0) > 0)
            return submitted;
        poll(&ring, 1, 1);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (nanoseconds(&now) >= end_ns) {
            errno = ETIME;
            return submitted > 0 ? submitted : -1;
        }
    }
}

long syscall(long number, ...)
{
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    int waits = number == SYS_io_uring_enter && (arguments[3] & IORING_ENTER_GETEVENTS) && arguments[2] > 0;
    return waits ? enter(arguments) : call(number, arguments);
}
