/* Sends a signal to a process at one of its file operations. Loaded with LD_PRELOAD; idle until `soak_arm` is called or
   the variable SOAK_ORDER is set when a program starts.

   An order is a file of struct Order, which all processes of a trial map: operations below the folder are counted over
   all of them, and the process that makes operation number `at` gets the signal. Operations are the calls that change
   files: open for writing, write, truncate, sync, rename, unlink, link, mkdir, rmdir. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BEFORE = 0, WITHIN = 1, AFTER = 2 };

struct Order {
    uint64_t count;    /* operations so far */
    uint64_t at;       /* 0: count only */
    uint64_t num_sent; /* signals sent, 0 or 1 */
    uint64_t part;     /* of a partial write: thousandths of its bytes that are written */
    uint64_t moment;   /* BEFORE, WITHIN (only writes, otherwise BEFORE) or AFTER the operation */
    uint64_t number;   /* number of the signal */
    char folder[4096]; /* resolved, without a slash at its end */
};

static struct Order *order = NULL;

int soak_arm(const char *path) {
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return -1;
    void *memory = mmap(NULL, sizeof(struct Order), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return -1;
    order = memory;
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SOAK_ORDER");
    if (path && *path) soak_arm(path);
}

static int is_below(const char *path) {
    size_t length = strlen(order->folder);
    return length && strncmp(path, order->folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int is_ours_at(int folder, const char *path) {
    char start[4096], whole[8300], link[64];
    if (path[0] == '/') return is_below(path);
    if (folder == AT_FDCWD) {
        if (!getcwd(start, sizeof start)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, start, sizeof start - 1);
        if (length < 0) return 0;
        start[length] = '\0';
    }
    snprintf(whole, sizeof whole, "%s/%s", start, path);
    return is_below(whole);
}

static int is_ours(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    return is_below(path);
}

/* Count an operation; true if it is the one that gets the signal. */
static int is_due(void) {
    uint64_t number = __atomic_add_fetch(&order->count, 1, __ATOMIC_SEQ_CST);
    return order->at != 0 && number == order->at;
}

static void send_signal(void) {
    __atomic_store_n(&order->num_sent, 1, __ATOMIC_SEQ_CST);
    kill(getpid(), (int)order->number);
}

#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); found; })

#define AROUND(type, ours, call)                                     \
    if (!order) return call;                                         \
    int kept = errno, due = (ours) && is_due();                      \
    errno = kept;                                                    \
    if (due && order->moment != AFTER) send_signal();                \
    type result = call;                                              \
    if (due && order->moment == AFTER) { kept = errno; send_signal(); errno = kept; } \
    return result;

#define IS_WRITING(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))

#define OPEN(name)                                                                       \
    int name(const char *path, int flags, ...) {                                         \
        va_list more; va_start(more, flags);                                             \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0;        \
        va_end(more);                                                                    \
        AROUND(int, IS_WRITING(flags) && is_ours_at(AT_FDCWD, path), REAL(name)(path, flags, mode)) }
#define OPENAT(name)                                                                     \
    int name(int folder, const char *path, int flags, ...) {                             \
        va_list more; va_start(more, flags);                                             \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0;        \
        va_end(more);                                                                    \
        AROUND(int, IS_WRITING(flags) && is_ours_at(folder, path), REAL(name)(folder, path, flags, mode)) }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

FILE *fopen(const char *path, const char *mode) {
    AROUND(FILE *, mode[0] != 'r' && is_ours_at(AT_FDCWD, path), REAL(fopen)(path, mode)) }
FILE *fopen64(const char *path, const char *mode) {
    AROUND(FILE *, mode[0] != 'r' && is_ours_at(AT_FDCWD, path), REAL(fopen64)(path, mode)) }

static size_t cut(size_t size) { return (size_t)(size * order->part / 1000); }

#define WRITE(name, arguments, part_call, whole_call)                \
    ssize_t name arguments {                                         \
        if (order && order->at && is_ours(file) && is_due()) {       \
            if (order->moment == WITHIN) { if (cut(size)) (void)!part_call; send_signal(); } \
            else if (order->moment == BEFORE) send_signal();         \
            else { ssize_t result = whole_call; send_signal(); return result; } \
            if (order->moment == WITHIN && cut(size)) return (ssize_t)cut(size); \
            return whole_call;                                       \
        }                                                            \
        if (order && !order->at && is_ours(file)) is_due();          \
        return whole_call; }
WRITE(write, (int file, const void *bytes, size_t size), REAL(write)(file, bytes, cut(size)), REAL(write)(file, bytes, size))
WRITE(pwrite, (int file, const void *bytes, size_t size, off_t at), REAL(pwrite)(file, bytes, cut(size), at),
      REAL(pwrite)(file, bytes, size, at))
WRITE(pwrite64, (int file, const void *bytes, size_t size, off64_t at), REAL(pwrite64)(file, bytes, cut(size), at),
      REAL(pwrite64)(file, bytes, size, at))

ssize_t writev(int file, const struct iovec *pieces, int num) {
    AROUND(ssize_t, is_ours(file), REAL(writev)(file, pieces, num)) }
int fsync(int file) { AROUND(int, is_ours(file), REAL(fsync)(file)) }
int fdatasync(int file) { AROUND(int, is_ours(file), REAL(fdatasync)(file)) }
int ftruncate(int file, off_t size) { AROUND(int, is_ours(file), REAL(ftruncate)(file, size)) }
int ftruncate64(int file, off64_t size) { AROUND(int, is_ours(file), REAL(ftruncate64)(file, size)) }
int rename(const char *old, const char *path) { AROUND(int, is_ours_at(AT_FDCWD, path), REAL(rename)(old, path)) }
int renameat(int from, const char *old, int to, const char *path) {
    AROUND(int, is_ours_at(to, path), REAL(renameat)(from, old, to, path)) }
int unlink(const char *path) { AROUND(int, is_ours_at(AT_FDCWD, path), REAL(unlink)(path)) }
int unlinkat(int folder, const char *path, int flags) {
    AROUND(int, is_ours_at(folder, path), REAL(unlinkat)(folder, path, flags)) }
int link(const char *old, const char *path) { AROUND(int, is_ours_at(AT_FDCWD, path), REAL(link)(old, path)) }
int symlink(const char *old, const char *path) { AROUND(int, is_ours_at(AT_FDCWD, path), REAL(symlink)(old, path)) }
int mkdir(const char *path, mode_t mode) { AROUND(int, is_ours_at(AT_FDCWD, path), REAL(mkdir)(path, mode)) }
int mkdirat(int folder, const char *path, mode_t mode) {
    AROUND(int, is_ours_at(folder, path), REAL(mkdirat)(folder, path, mode)) }
int rmdir(const char *path) { AROUND(int, is_ours_at(AT_FDCWD, path), REAL(rmdir)(path)) }
