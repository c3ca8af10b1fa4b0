/* Counts the instructions of a process, thread by thread, by stepping through them: for machines without counters of the CPU.
   count_steps PID: writes "ready" once it steps, and when its input ends a line "NAME COUNT" per thread; then it lets the process go.
   A step takes some microseconds, so what depends on time is not as it would be. System calls count as one instruction.
   Needs -pthread. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS_MAX 256
#define POKE_EVERY_US 10000

struct thread {
    pid_t id;
    char name[32];
    unsigned long steps;
    int is_gone;
};

static struct thread threads[THREADS_MAX];
static int thread_count;
static pthread_t main_thread;
static atomic_int has_input_ended;
static atomic_int has_stopped_stepping;

static struct thread *find(pid_t id)
{
    for (int i = 0; i < thread_count; i++)
        if (threads[i].id == id)
            return &threads[i];
    return NULL;
}

static FILE *open_of_thread(pid_t process, pid_t id, const char *file)
{
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", process, id, file);
    return fopen(path, "r");
}

static struct thread *add(pid_t process, pid_t id)
{
    if (thread_count == THREADS_MAX)
        return NULL;
    struct thread *made = &threads[thread_count++];
    made->id = id;
    FILE *file = open_of_thread(process, id, "comm");
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

/* Interrupts the main thread's wait for a step once the input has ended; again and again, as it may not wait yet. */
static void *watch_input(void *unused)
{
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    atomic_store(&has_input_ended, 1);
    while (!atomic_load(&has_stopped_stepping)) {
        pthread_kill(main_thread, SIGUSR1);
        usleep(POKE_EVERY_US);
    }
    return unused;
}

static void interrupt_only(int signal)
{
    (void)signal;
}

/* Whether the SIGTRAP of a step still waits for the thread: it would kill the thread once nobody traces it. */
static int is_trap_pending(pid_t process, pid_t id)
{
    unsigned long pending = 0;
    char line[128];
    FILE *file = open_of_thread(process, id, "status");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "SigPnd: %lx", &pending) == 1)
            break;
    fclose(file);
    return (pending >> (SIGTRAP - 1)) & 1;
}

static void detach(pid_t process)
{
    for (int i = 0; i < thread_count; i++)
        if (!threads[i].is_gone)
            ptrace(PTRACE_INTERRUPT, threads[i].id, 0, 0);
    for (int i = 0; i < thread_count; i++) {
        pid_t id = threads[i].id;
        int status;
        if (threads[i].is_gone || waitpid(id, &status, __WALL) != id || !WIFSTOPPED(status))
            continue;
        while (is_trap_pending(process, id) && ptrace(PTRACE_CONT, id, 0, 0) == 0 && waitpid(id, &status, __WALL) == id
               && WIFSTOPPED(status))
            ;
        int signal = status >> 16 != 0 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        ptrace(PTRACE_DETACH, id, 0, (void *)(long)signal);
    }
}

int main(int argc, char **argv)
{
    pid_t process = argc == 2 ? atoi(argv[1]) : 0;
    if (process <= 0) {
        fprintf(stderr, "count_steps PID\n");
        return 2;
    }
    struct sigaction action = {.sa_handler = interrupt_only};
    sigaction(SIGUSR1, &action, NULL);
    main_thread = pthread_self();
    attach(process);
    if (thread_count == 0) {
        fprintf(stderr, "count_steps: %s\n", strerror(errno));
        return 2;
    }
    puts("ready");
    fflush(stdout);
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch_input, NULL) != 0) {
        fprintf(stderr, "count_steps: no thread can be started\n");
        return 2;
    }
    while (!atomic_load(&has_input_ended)) {
        int status;
        pid_t id = waitpid(-1, &status, __WALL);
        if (id > 0)
            go_on(process, id, status);
        else if (errno != EINTR)
            break;
    }
    atomic_store(&has_stopped_stepping, 1);
    detach(process);
    for (int i = 0; i < thread_count; i++)
        printf("%s %lu\n", threads[i].name, threads[i].steps);
    return 0;
}
