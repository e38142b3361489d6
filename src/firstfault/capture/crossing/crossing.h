/* The way of a call that looks like one before it, in C: what the files of this folder share.
 *
 * In a program's own code every step of ours is cold, and a cold step of Python is some twenty cache misses. Here the
 * state of a call lies together, and nothing of it is an object that need not be one. Whatever is unusual is left to
 * Python (``black_box.py``, ``metadata.py``, …), before anything of the call has been written: what is
 * read of both is the same.
 *
 * All of it runs with the interpreter's lock held, but for what the driver is asked for (to write a marker, to read
 * tensors) and the system's write of a line.
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
#error "without the interpreter's lock nothing here is safe; Python's way is"
#endif

/* What Python expects here, as in compiled.py: another is one that was built from other sources. */
#define INTERFACE 5

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
    unsigned long stretch; /* of lines, which a reader has all of or none */
} Appender;

typedef struct {
    PyObject_HEAD
    unsigned long long last;
} Counter;

extern PyTypeObject CursorType, AppenderType, CounterType;
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
#define LONGEST_KIND (MOST_KEYS + 1)

/* What of a tensor may be another at each call. */
typedef struct {
    uint64_t storage, offset; /* an address, and elements */
    uint32_t version;
    uint8_t has_version;
} State;

typedef struct {
    uint64_t dimensions, size[MOST_DIMENSIONS], stride[MOST_DIMENSIONS];
} Shape;

int is_tensor(PyObject *value);
void tensors_fetch(PyObject *const *values, int count);
int tensor_kind(PyObject *tensor, uint64_t *kind);
int tensor_is_of(PyObject *tensor, const uint64_t *kind);
Shape tensor_shape(PyObject *tensor);
int tensor_is_shaped(PyObject *tensor, const Shape *shape);
uint64_t tensor_address(PyObject *tensor, uint64_t itemsize);
PyObject *torch_use(PyObject *module, PyObject *args, PyObject *kwargs);

State tensor_state(PyObject *tensor);
uint64_t tensor_storage_bytes(PyObject *tensor);

/* --- shapes.c: sizes and strides */

int shape_is(const Shape *shape, const Shape *other);
int shape_is_contiguous(const Shape *shape);
uint64_t shape_elements(const Shape *shape);

/* --- known.c: what one side of a call looks like, in a ring */

typedef struct {
    PyObject_HEAD
    unsigned long number, segment; /* of which the last describes it; 0 for none */
    int tensors;
    Shape *shape; /* of each of those, as they are described there */
} Known;

extern PyTypeObject KnownType;

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

uint64_t mixed(uint64_t hash, uint64_t word);
uint64_t mixed_text(uint64_t hash, PyObject *text);
int same_text(PyObject *one, PyObject *other);
int is_referred_to(PyObject *reference, PyObject *value);

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
    uint16_t tensors, distinct, again, others, kinds; /* the last in words */
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
int look_shapes(const Look *look, const Flat *flat, Shape *shapes);

/* --- kinds.c: what the values of a type are; the numbers are kinds.py's */

enum { NEVER, MEMBER, SINGLE, FIELDS, OBJECT, ASKED, SEQUENCE, MAPPING };

typedef struct {
    PyObject_HEAD
    PyTypeObject *type; /* as long as ``watch`` refers to it */
    PyObject *watch, *names;
    const char *name;     /* of the type when it was asked */
    unsigned int version; /* of the class, where ``is_of_class`` tells that the kind follows from what stands in it */
    int how, is_of_class;
    uint64_t serial;
} Kind;

#define FIRST_SERIAL 256 /* apart from all else that a word of a walk begins with */

extern PyTypeObject KindType;
Kind *kind_of(PyTypeObject *type);
PyObject *kind_described(PyObject *value);
PyObject *kinds_use(PyObject *module, PyObject *args);

/* --- walk.c: what a call was given, taken apart */

#define MOST_WORDS 3072
#define MOST_TENSORS 128
#define MOST_PLAINS 640
#define MOST_CONSTANTS 128
#define LONGEST_HEAD 4096 /* of a line, before what it says of its values */
#define LONGEST_TAIL 28672

typedef struct Walk {
    struct Walk *next;
    int words, tensors, plains, constants, nodes;
    PyObject *constant[MOST_CONSTANTS]; /* what the words tell by its address */
    PyObject *tensor[MOST_TENSORS];
    State state[MOST_TENSORS];
    Shape shape[MOST_TENSORS];
    PyObject *plain[MOST_PLAINS]; /* None, bool, int, float, str */
    uint64_t word[MOST_WORDS];
    char line[LONGEST_HEAD + LONGEST_TAIL]; /* the head is written last, up to where the tail begins */
} Walk;

/* The arguments of a call, as its boundary was given them. */
typedef struct {
    PyObject *const *values;
    Py_ssize_t count; /* of those by position */
    PyObject *names;
    PyObject *tuple, *dict; /* what they came in, in place of those three; NULL for none */
} Arguments;

Walk *walk_new(void);
void walk_free(Walk *walk);
int walk_arguments(Walk *walk, PyObject *const *values, Py_ssize_t count, PyObject *names);
int walk_result(Walk *walk, PyObject *result);
PyObject *argument_at(const Arguments *given, PyObject *root);
PyObject *value_at(const Arguments *given, PyObject *path);

/* --- layouts.c: what calls look like of which nothing is lost */

typedef struct Layout {
    PyObject_HEAD
    struct Layout *next;
    uint64_t hash;
    PyObject *op, *target, *site; /* the last two NULL for a result */
    unsigned long number, stretch; /* the last stretch of lines that describes it; 0 for none */
    int words, tensors, plains, constants;
    PyObject *paths;  /* of the tensors */
    PyObject *labels; /* those as they stand in a line */
    size_t labels_size;
    PyObject *readings; /* bytes: how those that the device reads are read; NULL for none */
    PyObject *fixed;    /* bytes: which are left out of that for their size; NULL for none */
    PyObject *mutates; /* what a call was last declared to change, and which of the tensors that is */
    uint8_t declared[MOST_TENSORS];
    PyObject **constant, **plain;
    uint64_t *word;
    Shape *shape; /* of each tensor, where it was described */
} Layout;

typedef struct {
    Layout **bucket;
    uint64_t *seen; /* hashes of what has been described without a number */
    size_t count, bytes;
} Layouts;

extern PyTypeObject LayoutType;
int layouts_start(Layouts *layouts);
void layouts_clear(Layouts *layouts);
void layouts_end(Layouts *layouts);
Layout *layout_find(const Layouts *layouts, const Where *where, const Walk *walk);
Layout *layout_keep(Layouts *layouts, const Where *where, const Walk *walk, unsigned long number, PyObject *found,
                    PyObject *readings, PyObject *fixed);
const uint8_t *layout_declared(Layout *layout, PyObject *mutates);

/* --- readings.c: what the device reads by itself; the first of its types also Python's */

typedef struct {
    PyObject_HEAD
    uint64_t token;         /* of the next entry */
    unsigned int next, end; /* of the half of the page that is in use: its next entry, and where it ends */
    PyThread_type_lock launching;
} Entries;

typedef int (*LaunchKernel)(void *function, unsigned int x, unsigned int y, unsigned int z, unsigned int threads_x,
                            unsigned int threads_y, unsigned int threads_z, unsigned int shared, void *stream,
                            void **arguments, void **extra);
typedef int (*CopyToDevice)(uint64_t to, const void *host, size_t size, void *stream);
typedef int (*Synchronize)(void *stream);
typedef int (*ExchangeMode)(int *mode);

#define MOST_STREAMS 8

/* What the readings of one stream need. */
typedef struct {
    int device;
    uint64_t stream, scratch, function;
    unsigned int shared;
} Lane;

/* Entries next to each other, with tokens that follow each other; none where nothing is read. */
typedef struct {
    unsigned int first, count, parts; /* the last of programs that share the largest tensor on the device */
    uint64_t token;
    Lane lane;
} Taken;

/* What is needed without the interpreter's lock. */
typedef struct {
    LaunchKernel launch;
    CopyToDevice copy;
    Synchronize synchronize;
    ExchangeMode exchange_mode;
    const char *asked; /* where requests lie, and where for the device */
    uint64_t requests;
    unsigned int most_tensors, many_parts, threads, copied; /* as in device_stats.py */
    char waits;
} Launcher;

typedef struct {
    Entries *entries;   /* NULL until there is a page, and once it is being closed */
    char *page, *asked; /* where its entries lie, and the requests */
    uint64_t results;   /* where the device writes into the first entry */
    Launcher launcher;
    Lane lanes[MOST_STREAMS];
    unsigned int used, oldest;
} Reader;

enum { INPUTS, OUTPUTS }; /* as in record/statistics_page.py */

extern PyTypeObject EntriesType;
unsigned int readings_of(const Layout *layout);
int readings_are_of(PyObject *readings, PyObject *fixed, int tensors);

/* --- call.c: a call that has begun */

typedef struct {
    PyObject_HEAD
    PyObject *calls; /* a list */
    char busy;
    long tid;
} Thread;

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
    char tells_all;              /* whether all that is described of calls is written, to a file */
    Layouts arguments, results;  /* what it has been described as */
    Reader reader;               /* and of what the device reads the values */
} Box;

#define FEW 6

/* A tensor that a call may write to, by its address: the call may let go of it. */
typedef struct {
    PyObject *tensor;
    uint32_t version;
    uint8_t has_version;
} Watched;

typedef struct {
    PyObject_HEAD
    unsigned long long n;
    char is_marked; /* whether its begin was */
    PyObject *op, *mutates;
    Thread *thread;
    Box *box;
    Layout *layout;   /* NULL where not all is told of it; the rest is of such calls alone */
    Watched *watched; /* one for each tensor; NULL where none has a version */
    Watched few[FEW];
    Arguments given; /* where there are such tensors: what the boundary holds until the call has come back */
} Call;

typedef struct {
    PyObject *op, *target;
    PyObject *const *args;
    Py_ssize_t count; /* of those by position */
    PyObject *names;
    PyObject *tuple, *dict; /* that they came in; NULL for none */
    unsigned long long graph;
} Given;

typedef struct {
    Where where;
    Flat flat;
    Look *look;
    uint64_t addresses[MOST_VALUES];
    int device;
    uint64_t stream;
    PyObject *slot; /* held: others may run before its marker is written, and let go of it */
} Begin;

typedef struct {
    uint64_t t;
    int device;
    uint64_t stream;
    char is_placed; /* whether device and stream are known, and the marker written there */
} Return;

extern PyTypeObject ThreadType, BoxType, CallType;
Thread *thread_of(Box *box);
int box_begin(Box *box, Thread *thread, const Given *given, PyFrameObject *frame, Call **begun);
int begin_placed(Box *box, Begin *begin);
int call_push(Box *box, Thread *thread, PyObject *op, int is_marked, Call **begun, unsigned long long *parent);
int append_text(Box *box, const char *text, size_t length);
void forgive(void);
int call_returned(Call *call, PyObject *result);
int call_raised(Call *call, PyObject *error);

/* --- exact.c: a call of which nothing is lost */

int begin_exact(Box *box, Thread *thread, const Given *given, Begin *begin, Call **begun);
int return_exact(Call *call, PyObject *result, const Return *record);
PyObject *call_changed(Call *call);
void call_forget(Call *call);
PyObject *keep_exact_inputs(PyObject *self, PyObject *args);
PyObject *keep_exact_output(PyObject *self, PyObject *args);

int readings_prepare(Box *box, const Layout *layout, const Walk *walk, int device, uint64_t stream, Taken *taken);
void readings_take(Box *box, const Layout *layout, const Walk *walk, uint64_t call, int side, Taken *taken);
void readings_start(Box *box, const Layout *layout, const Walk *walk, const Taken *taken);
PyObject *use_reader(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *forget_readers(PyObject *self, PyObject *unused);
PyObject *stop_reading(PyObject *self, PyObject *unused);

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
    uint8_t object, sizes, strides, offset, first, last, storage, autograd, data, counter, version, nbytes; /* tensor_words.py's */
} First;

extern First first;

#endif
