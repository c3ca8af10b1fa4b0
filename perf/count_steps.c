/* Counts the instructions of a process, thread by thread, by stepping through them: for machines without counters of the CPU.
   count_steps PID: writes "ready" once it steps, and when its input ends a line "NAME COUNT" per thread; then it lets the process go.
   A step takes some microseconds, so what depends on time is not as it would be. System calls count as one instruction. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 256
#define LOOK_EVERY 512

struct thread {
    pid_t id;
    char name[32];
    unsigned long steps;
    int is_gone;
};

static struct thread threads[THREADS_MAX];
static int thread_count;

static struct thread *find(pid_t id)
{
    for (int i = 0; i < thread_count; i++)
        if (threads[i].id == id)
            return &threads[i];
    return NULL;
}

static struct thread *add(pid_t process, pid_t id)
{
    if (thread_count == THREADS_MAX)
        return NULL;
    struct thread *made = &threads[thread_count++];
    char path[64];
    made->id = id;
    snprintf(path, sizeof path, "/proc/%d/task/%d/comm", process, id);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fgets(made->name, sizeof made->name, file) != NULL)
            made->name[strcspn(made->name, "\n")] = 0;
        fclose(file);
    }
    return made;
}

static void attach(pid_t process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *tasks = opendir(path);
    if (tasks == NULL) {
        perror(path);
        exit(2);
    }
    struct dirent *entry;
    while ((entry = readdir(tasks)) != NULL) {
        pid_t id = atoi(entry->d_name);
        if (id == 0 || ptrace(PTRACE_SEIZE, id, 0, (void *)PTRACE_O_TRACECLONE) != 0)
            continue;
        add(process, id);
        ptrace(PTRACE_INTERRUPT, id, 0, 0);
    }
    closedir(tasks);
}

/* Lets a stopped thread do its next step. What it stopped for, if not for a step, is its own. */
static void go_on(pid_t process, pid_t id, int status)
{
    struct thread *thread = find(id);
    if (!WIFSTOPPED(status)) {
        if (thread != NULL)
            thread->is_gone = 1;
        return;
    }
    if (thread == NULL)
        thread = add(process, id);
    int signal = WSTOPSIG(status);
    int is_event = status >> 16 != 0;
    if (signal == SIGTRAP && !is_event && thread != NULL)
        thread->steps++;
    if (signal == SIGTRAP || is_event)
        signal = 0;
    ptrace(PTRACE_SINGLESTEP, id, 0, (void *)(long)signal);
}

static int has_input_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) == 1 && read(0, &byte, 1) <= 0;
}

static void detach(void)
{
    for (int i = 0; i < thread_count; i++)
        if (!threads[i].is_gone)
            ptrace(PTRACE_INTERRUPT, threads[i].id, 0, 0);
    for (int i = 0; i < thread_count; i++) {
        int status;
        if (threads[i].is_gone || waitpid(threads[i].id, &status, __WALL) != threads[i].id || !WIFSTOPPED(status))
            continue;
        int signal = status >> 16 != 0 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        ptrace(PTRACE_DETACH, threads[i].id, 0, (void *)(long)signal);
    }
}

int main(int argc, char **argv)
{
    pid_t process = argc == 2 ? atoi(argv[1]) : 0;
    if (process <= 0) {
        fprintf(stderr, "count_steps PID\n");
        return 2;
    }
    attach(process);
    if (thread_count == 0) {
        fprintf(stderr, "count_steps: %s\n", strerror(errno));
        return 2;
    }
    puts("ready");
    fflush(stdout);
    for (unsigned long turn = 0;; turn++) {
        int status;
        pid_t id = waitpid(-1, &status, __WALL | WNOHANG);
        if (id > 0)
            go_on(process, id, status);
        else if (id < 0)
            break;
        if ((id == 0 || turn % LOOK_EVERY == 0) && has_input_ended())
            break;
        if (id == 0) {
            struct timespec pause = {0, 20000};
            nanosleep(&pause, NULL);
        }
    }
    detach();
    for (int i = 0; i < thread_count; i++)
        printf("%s %lu\n", threads[i].name, threads[i].steps);
    return 0;
}
