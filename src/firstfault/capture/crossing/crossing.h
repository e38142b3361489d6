/* The black box's way of a call that looks like one before it, in C: what the files of this folder share.
 *
 * In a program's own code every step of ours is cold, and a cold step of Python is some twenty cache misses. Here the
 * state of a call lies together, and nothing of it is an object that need not be one. Whatever is unusual is left to
 * the Python of ``black_box.py``, before anything of the call has been written: both write the same record.
 *
 * All of it runs with the interpreter's lock held, but for the driver's write of a marker and the system's of a line.
 */
#ifndef FIRSTFAULT_CROSSING_H
#define FIRSTFAULT_CROSSING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030b0000
#include <frameobject.h>
#endif
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#error "without the interpreter's lock nothing here is safe; the Python of black_box.py is"
#endif

/* What Python expects here, as in compiled.py: another is one that was built from other sources. */
#define INTERFACE 1

/* As in repeats.py. */
#define MOST_VALUES 64
#define MOST_DEEP 2
#define MOST_TYPES (3 * MOST_VALUES)
#define MOST_LAYOUTS 8

/* --- cursor.c: where the next record of a ring goes */

typedef struct {
    PyObject_HEAD
    char *at; /* of the segment; NULL while none may be written to */
    size_t size, end;
    unsigned long segment;
} Cursor;

/* The file that the next record of a recording without a ring goes to. */
typedef struct {
    PyObject_HEAD
    int fd; /* -1 while only Python may write */
    long long size, limit;
} Appender;

typedef struct {
    PyObject_HEAD
    unsigned long long last;
} Counter;

/* What one side of a call looks like: its number, and the last segment that describes it. */
typedef struct {
    PyObject_HEAD
    unsigned long number, segment;
} Known;

extern PyTypeObject CursorType, AppenderType, CounterType, KnownType;
long long appender_append(Appender *appender, const char *data, size_t length);
int cursor_append(Cursor *cursor, const char *data, size_t length, unsigned long segment);

/* --- marker.c: what the device writes down */

typedef int (*IsCapturing)(void *stream, int *status);
typedef int (*GetDevice)(int *device);
typedef int (*GetStream)(int32_t device, void **stream);
typedef int (*StreamWrite)(void *stream, uint64_t address, uint32_t value, unsigned int flags);

typedef struct {
    PyObject_HEAD
    uint64_t *enqueued; /* in the page, which is never unmapped */
    uint64_t address;   /* the device's, of the word that it writes */
    StreamWrite write;
    PyThread_type_lock lock;
} Slot;

extern PyTypeObject SlotType;
void slot_mark(Slot *slot, uint64_t stream, uint64_t marker);

/* --- sites.c: where a call was made */

PyObject *site_of(PyFrameObject *frame);
PyObject *sites_use(PyObject *module, PyObject *told);

/* --- tensors.c: what a tensor looks like */

#define MOST_DIMENSIONS 5 /* as in tensor_words.py */
#define MOST_KEYS 3
#define LONGEST_IMAGE (MOST_KEYS + 1 + 2 * MOST_DIMENSIONS)

int is_tensor(PyObject *value);
void tensors_fetch(PyObject *const *values, int count);
int tensor_image(PyObject *tensor, uint64_t *image);
int tensor_is_like(PyObject *tensor, const uint64_t *image);
uint64_t tensor_address(PyObject *tensor, uint64_t itemsize);
PyObject *torch_use(PyObject *module, PyObject *args, PyObject *kwargs);

/* --- looks.c: what a call looks like */

typedef struct {
    int values, types;
    PyObject *value[MOST_VALUES];
    uintptr_t type[MOST_TYPES];
} Flat;

typedef struct {
    PyObject *op, *target, *site; /* the last two NULL for a result */
    PyObject *names;              /* the keywords' tuple, or NULL */
} Where;

typedef struct Look Look;
typedef struct {
    struct Form **forms;
    Look **looks;
    size_t count;
    unsigned long changes;
    int readers; /* calls that are looking: what is taken out meanwhile is let go of after them */
    Look *gone;
    struct Form *gone_forms;
} Looks;

/* A look is one piece of memory, read from its begin to its end: see look_parts in looks.c. */
struct Look {
    Look *next, *next_gone;
    struct Form *form;
    uint64_t hash;
    Known *known;
    uint16_t tensors, distinct, again, others, images; /* the last in words */
    uint64_t part[];
};

int looks_start(Looks *looks);
void looks_clear(Looks *looks);
int flatten(Flat *flat, PyObject *const *values, Py_ssize_t count, int depth);
void flat_hold(Flat *flat);
void flat_drop(Flat *flat);
void looks_hold(Looks *looks);
void looks_drop(Looks *looks);
PyObject **form_text(Looks *looks, const Where *where);
Look *look_find(Looks *looks, const Where *where, Flat *flat);
int look_keep(Looks *looks, const Where *where, Flat *flat, PyObject *compared, Known *known);
void look_addresses(const Look *look, const Flat *flat, uint64_t *addresses);

/* --- call.c: a call that has begun */

typedef struct {
    PyObject_HEAD
    PyObject *calls; /* a list */
    char busy;
    long tid;
} Thread;

#define MOST_STREAMS 8

typedef struct {
    int device;
    uint64_t stream;
    PyObject *slot;
} Stream;

typedef struct {
    PyObject_HEAD
    PyObject *recorder, *slow; /* the Recorder, and its BlackBox */
    PyObject *threads;         /* what gives the current thread, as its ``current`` */
    Cursor *cursor;     /* of a ring; NULL where only the names of calls are written, to a file */
    Appender *appender; /* that file */
    Counter *counter;
    PyObject *markers, *capturing, *device, *stream; /* NULL until there are markers */
    IsCapturing is_capturing; /* the same three, where the runtime may be asked itself; else NULL */
    GetDevice get_device;
    GetStream get_stream;
    PyObject *cuda;            /* torch.cuda's own names while markers are still wanted, else NULL */
    Stream streams[MOST_STREAMS];
    unsigned int used, oldest;
    char closed, in_graphs;
    uint64_t serial;
    unsigned long long here, left; /* sides of calls that were written here, and that were left to Python */
    PyObject *mutates, *mutated; /* what a call was last declared to change, and that as JSON */
    Looks inputs, outputs;
} Box;

typedef struct {
    PyObject_HEAD
    unsigned long long n;
    char is_marked; /* whether its begin was */
    PyObject *op, *mutates;
    Thread *thread;
    Box *box;
} Call;

typedef struct {
    PyObject *op, *target;
    PyObject *const *args;
    Py_ssize_t count; /* of those by position */
    PyObject *names;
    unsigned long long graph;
} Given;

extern PyTypeObject ThreadType, BoxType, CallType;
Thread *thread_of(Box *box);
int box_begin(Box *box, Thread *thread, const Given *given, PyFrameObject *frame, Call **begun);
int call_returned(Call *call, PyObject *result);
int call_raised(Call *call, PyObject *error);

/* --- boundary.c: functions whose calls come here first */

PyObject *boundary_attach(PyObject *module, PyObject *args);
PyObject *boundary_use(PyObject *module, PyObject *compiler);
int boundary_start(void);

/* --- module.c */

struct Plan;

/* What every call looks at first, in one line of the cache. */
typedef struct {
    Box *active; /* whose calls come here; NULL for none */
    struct Plan **plans;
    size_t most_plans; /* less one: a power of two */
    vectorcallfunc plain;
    PyInterpreterState *interpreter;
    PyTypeObject *tensor, *parameter;
    uint8_t is_traced; /* whether torch traces the program; 2 where it has to be asked */
    uint8_t object, sizes, strides, offset, first, last, storage, autograd, data; /* tensor_words.py's Words */
} First;

extern First first;

#endif
