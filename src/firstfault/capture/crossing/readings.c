/* What the device reads of the tensors of a call by itself: their values never come here. As deferred_stats.py does it.
 *
 * The host writes which tensors it wants read into entries of the statistics page, and what each is into requests that
 * lie next to each other; one launch reads them all, and writes the results into the entries. Small tensors that lie on
 * the host, as a batch has some, are read here.
 */
#include "crossing.h"
#include <math.h>
#include <string.h>
#include <time.h>

#define ENTRY_BYTES 128 /* as in record/statistics_page.py */
#define RESULT_OFFSET 64
#define TOKEN_OFFSET 40
#define REQUEST_BYTES 128 /* as in device_stats.py */
#define REQUEST_WORDS 13
#define BLOCK_BYTES 8192
#define BLOCK_VALUES 512
#define TURNS 4
#define ENDLESS 2147483647
#define SPIN_NANOSECONDS 100000 /* to have the driver wait takes 10 to 100 µs by itself */
#define CAPTURE_RELAXED 2

/* How one tensor of a layout is read, as by_device.py packs it. */
typedef struct {
    int64_t tensor, device, itemsize; /* device -1: it is read here */
    int64_t most_bytes, most_parts; /* of what is read, and programs that read it */
    int64_t number;                 /* how an entry's result is to be understood */
    /* The rest is of a tensor as it was described; it holds for one that lies as that did, and of a contiguous one it
     * follows from its size. */
    int64_t misaligned, reach; /* its address as far as that is no multiple of 16, and bytes from its first element on */
    int64_t numel, times;
    int64_t words[REQUEST_WORDS];
} Reading;

enum { BFLOAT16 = 6, FLOAT32 = 7, FLOAT64 = 9, UINT8 = 11, INT8 = 12, INT16 = 14, INT32 = 16, INT64 = 18 };

/* --- entries: which of the page's are to be had */

static PyObject *entries_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs != NULL || !PyArg_ParseTuple(args, "")) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Entries takes nothing");
    }
    Entries *entries = (Entries *)type->tp_alloc(type, 0);
    if (entries == NULL) {
        return NULL;
    }
    entries->token = 1;
    entries->launching = PyThread_allocate_lock();
    if (entries->launching == NULL) {
        Py_DECREF(entries);
        return PyErr_NoMemory();
    }
    return (PyObject *)entries;
}

static void entries_dealloc(PyObject *self)
{
    if (((Entries *)self)->launching != NULL) {
        PyThread_free_lock(((Entries *)self)->launching);
    }
    Py_TYPE(self)->tp_free(self);
}

/* Take so many entries next to each other, and tokens for them; 0 where there are fewer. */
static int entries_take(Entries *entries, unsigned int count, Taken *taken)
{
    if (entries->end - entries->next < count) {
        return 0;
    }
    taken->first = entries->next;
    taken->count = count;
    taken->token = entries->token;
    entries->next += count;
    entries->token += count;
    return 1;
}

static PyObject *take(PyObject *self, PyObject *number)
{
    Taken taken;
    unsigned long count = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (count > UINT32_MAX || !entries_take((Entries *)self, (unsigned int)count, &taken)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("IK", taken.first, (unsigned long long)taken.token);
}

static PyObject *move(PyObject *self, PyObject *args)
{
    Entries *entries = (Entries *)self;
    unsigned int first, end;
    if (!PyArg_ParseTuple(args, "II", &first, &end)) {
        return NULL;
    }
    unsigned int next = entries->next;
    entries->next = first;
    entries->end = end < first ? first : end;
    return PyLong_FromUnsignedLong(next);
}

static PyObject *begin_launch(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(((Entries *)self)->launching, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *end_launch(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyThread_release_lock(((Entries *)self)->launching);
    Py_RETURN_NONE;
}

static PyObject *get_next(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((Entries *)self)->next);
}

static PyMethodDef entries_methods[] = {
    {"take", take, METH_O, NULL},
    {"move", move, METH_VARARGS, NULL},
    {"begin_launch", begin_launch, METH_NOARGS, NULL},
    {"end_launch", end_launch, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef entries_attributes[] = {
    {"next", get_next, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject EntriesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Entries",
    .tp_basicsize = sizeof(Entries),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = entries_new,
    .tp_dealloc = entries_dealloc,
    .tp_methods = entries_methods,
    .tp_getset = entries_attributes,
};

/* --- which tensors are read */

/* How many tensors of a layout are read. */
unsigned int readings_of(const Layout *layout)
{
    return layout->readings == NULL ? 0 : (unsigned int)(PyBytes_GET_SIZE(layout->readings) / (Py_ssize_t)sizeof(Reading));
}

static Reading reading_at(const Layout *layout, unsigned int index)
{
    Reading reading;
    memcpy(&reading, PyBytes_AS_STRING(layout->readings) + index * sizeof reading, sizeof reading);
    return reading;
}

/* Whether what by_device.py has packed is of a layout. */
int readings_are_of(PyObject *readings, PyObject *fixed, int tensors)
{
    Py_ssize_t size = PyBytes_GET_SIZE(readings);
    for (Py_ssize_t at = 0; at < PyBytes_GET_SIZE(fixed); at++) {
        if ((unsigned char)PyBytes_AS_STRING(fixed)[at] >= tensors) {
            return 0;
        }
    }
    for (Py_ssize_t at = 0; at + (Py_ssize_t)sizeof(Reading) <= size; at += (Py_ssize_t)sizeof(Reading)) {
        int64_t tensor;
        memcpy(&tensor, PyBytes_AS_STRING(readings) + at, sizeof tensor);
        if (tensor < 0 || tensor >= tensors) {
            return 0;
        }
    }
    return size % (Py_ssize_t)sizeof(Reading) == 0;
}

static uint64_t address_of(const Walk *walk, const Reading *reading)
{
    const State *state = &walk->state[reading->tensor];
    return state->storage == 0 ? 0 : state->storage + state->offset * (uint64_t)reading->itemsize;
}

/* How to read a dense tensor, as device_stats.py's _plan does it: blocks of 16 bytes a thread, the rest one by one. */
static void plan_dense(Reading *reading, uint64_t address)
{
    int64_t per_block = BLOCK_BYTES / reading->itemsize, head = (int64_t)(-address % 16) / reading->itemsize;
    head = head < reading->numel ? head : reading->numel;
    int64_t blocks = (reading->numel - head) / per_block, elements = reading->numel - blocks * per_block;
    int64_t turns = (blocks + (elements + BLOCK_VALUES - 1) / BLOCK_VALUES + TURNS - 1) / TURNS;
    int64_t parts = turns < reading->most_parts ? turns : reading->most_parts;
    int64_t words[REQUEST_WORDS] = {reading->words[0], parts > 1 ? parts : 1, blocks, elements, head, blocks * per_block,
                                    ENDLESS,           ENDLESS,               ENDLESS, 1};
    memcpy(reading->words, words, sizeof words);
}

/* Find out how a tensor of a call is read, from how the described one was; 0 where that does not tell it. */
static int adapt(Reading *reading, const Walk *walk, const Layout *layout)
{
    const Shape *shape = &walk->shape[reading->tensor];
    uint64_t address = address_of(walk, reading), itemsize = (uint64_t)reading->itemsize;
    if (address == 0 || address % itemsize != 0) {
        return 0;
    }
    if (shape_is_contiguous(shape)) {
        reading->numel = (int64_t)shape_elements(shape);
        reading->times = 1;
        reading->reach = reading->numel * reading->itemsize;
        if (reading->numel <= 0 || reading->reach > reading->most_bytes) {
            return 0;
        }
        if (reading->device >= 0) {
            plan_dense(reading, address);
        }
    }
    else if (reading->misaligned != (int64_t)(address & 15) || !shape_is(shape, &layout->shape[reading->tensor])) {
        return 0;
    }
    uint64_t start = walk->state[reading->tensor].offset * itemsize;
    return start + (uint64_t)reading->reach <= tensor_storage_bytes(walk->tensor[reading->tensor]);
}

/* Whether a tensor still lies where it did when the walk met it: others may have run since. */
static int is_there(const Walk *walk, const Reading *reading)
{
    const State *before = &walk->state[reading->tensor];
    State now = tensor_state(walk->tensor[reading->tensor]);
    uint64_t start = now.offset * (uint64_t)reading->itemsize;
    return now.storage == before->storage && now.offset == before->offset &&
           start + (uint64_t)reading->reach <= tensor_storage_bytes(walk->tensor[reading->tensor]);
}

/* Whether what is not read for its size still has that. */
static int are_fixed(const Layout *layout, const Walk *walk)
{
    Py_ssize_t count = layout->fixed == NULL ? 0 : PyBytes_GET_SIZE(layout->fixed);
    for (Py_ssize_t at = 0; at < count; at++) {
        int index = (unsigned char)PyBytes_AS_STRING(layout->fixed)[at];
        if (!shape_is(&walk->shape[index], &layout->shape[index])) {
            return 0;
        }
    }
    return 1;
}

/* --- where they are read */

static void forget_lanes(Reader *reader)
{
    reader->used = reader->oldest = 0;
}

/* What a stream's readings need, or 0 where that cannot be had. */
static int lane_of(Box *box, int device, uint64_t stream, Lane *lane)
{
    Reader *reader = &box->reader;
    for (unsigned int index = 0; index < reader->used; index++) {
        if (reader->lanes[index].stream == stream && reader->lanes[index].device == device) {
            *lane = reader->lanes[index];
            return 1;
        }
    }
    unsigned long long scratch, function;
    *lane = (Lane){.device = device, .stream = stream};
    PyObject *found = PyObject_CallMethod(box->slow, "lane", "iK", device, (unsigned long long)stream);
    int is_there = found != NULL && PyTuple_Check(found) &&
                   PyArg_ParseTuple(found, "KKI", &scratch, &function, &lane->shared);
    Py_XDECREF(found);
    if (!is_there) {
        forgive();
        return 0;
    }
    lane->scratch = scratch;
    lane->function = function;
    reader->lanes[reader->used < MOST_STREAMS ? reader->used++ : reader->oldest++ % MOST_STREAMS] = *lane;
    return 1;
}

/* Find out whether what a layout says can be read of a call's tensors, and with what; 0 if not. Others may run. */
int readings_prepare(Box *box, const Layout *layout, const Walk *walk, int device, uint64_t stream, Taken *taken)
{
    unsigned int count = readings_of(layout);
    *taken = (Taken){.count = 0};
    if (!are_fixed(layout, walk)) {
        return 0;
    }
    if (count == 0) {
        return 1;
    }
    if (box->reader.entries == NULL || device < 0 || !lane_of(box, device, stream, &taken->lane)) {
        return 0;
    }
    for (unsigned int index = 0; index < count; index++) {
        Reading reading = reading_at(layout, index);
        if ((reading.device >= 0 && reading.device != device) || !adapt(&reading, walk, layout)) {
            return 0;
        }
    }
    const Entries *entries = box->reader.entries;
    return entries != NULL && entries->end - entries->next >= count;
}

static void put_entry(char *entry, uint64_t token, uint64_t call, const Reading *reading, unsigned int index, int side)
{
    uint64_t words[4] = {token, call, (uint64_t)reading->numel, (uint64_t)reading->times};
    uint32_t place = index;
    memcpy(entry, words, sizeof words);
    memcpy(entry + sizeof words, &place, sizeof place);
    entry[sizeof words + sizeof place] = (char)side;
    entry[sizeof words + sizeof place + 1] = (char)reading->number;
}

/* Let an entry go unread: complete, and of no values; nothing is asked for it. */
static void waive(const Reader *reader, uint64_t slot, uint64_t token)
{
    const Reading none = {.times = 1};
    char *entry = reader->page + slot * ENTRY_BYTES;
    put_entry(entry, token, 0, &none, 0, 0);
    memcpy(entry + RESULT_OFFSET + TOKEN_OFFSET, &token, sizeof token);
    memset(reader->asked + slot * REQUEST_BYTES, 0, REQUEST_BYTES);
}

/* --- reading */

#define READ_INTEGERS(type)                                                                                            \
    for (int64_t index = 0; index < reading->numel; index++) {                                                         \
        type value = ((const type *)values)[index];                                                                    \
        low = value < low ? value : low;                                                                               \
        high = value > high ? value : high;                                                                            \
        total += (double)value;                                                                                        \
    }

static void read_integers(const void *values, const Reading *reading, char *result)
{
    int64_t low = INT64_MAX, high = INT64_MIN, counts[2] = {reading->numel, 0};
    double total = 0;
    switch (reading->words[0]) {
    case UINT8:
        READ_INTEGERS(uint8_t);
        break;
    case INT8:
        READ_INTEGERS(int8_t);
        break;
    case INT16:
        READ_INTEGERS(int16_t);
        break;
    case INT32:
        READ_INTEGERS(int32_t);
        break;
    default:
        READ_INTEGERS(int64_t);
    }
    memcpy(result, &low, sizeof low);
    memcpy(result + 8, &high, sizeof high);
    memcpy(result + 16, &total, sizeof total);
    memcpy(result + 24, counts, sizeof counts);
}

static double float_at(const void *values, int64_t index, int64_t kind)
{
    if (kind == FLOAT64) {
        return ((const double *)values)[index];
    }
    if (kind == FLOAT32) {
        return ((const float *)values)[index];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)values)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void read_floats(const void *values, const Reading *reading, char *result)
{
    double found[3] = {INFINITY, -INFINITY, 0};
    int64_t counts[2] = {0, 0}; /* of what is not NaN, and of what is infinite */
    for (int64_t index = 0; index < reading->numel; index++) {
        double value = float_at(values, index, reading->words[0]);
        if (!isnan(value)) {
            found[0] = value < found[0] ? value : found[0];
            found[1] = value > found[1] ? value : found[1];
            found[2] += value;
            counts[0]++;
            counts[1] += isinf(value) != 0;
        }
    }
    if (!isfinite(found[2]) && counts[0] == reading->numel && counts[1] == 0) { /* the sum is beyond what a double has */
        found[2] = 0;
        for (int64_t index = 0; index < reading->numel; index++) {
            found[2] += float_at(values, index, reading->words[0]) / (double)reading->numel;
        }
        found[2] *= (double)reading->numel;
    }
    memcpy(result, found, sizeof found);
    memcpy(result + sizeof found, counts, sizeof counts);
}

/* Read a tensor that lies here, and complete its entry. */
static void read_here(const Walk *walk, const Reading *reading, char *entry, uint64_t token)
{
    const void *values = (const void *)(uintptr_t)address_of(walk, reading);
    if (reading->words[0] < UINT8) {
        read_floats(values, reading, entry + RESULT_OFFSET);
    }
    else {
        read_integers(values, reading, entry + RESULT_OFFSET);
    }
    memcpy(entry + RESULT_OFFSET + TOKEN_OFFSET, &token, sizeof token);
}

static void put_request(const Reader *reader, const Walk *walk, const Reading *reading, uint64_t slot, uint64_t token)
{
    uint64_t request[REQUEST_BYTES / 8] = {address_of(walk, reading)};
    memcpy(request + 1, reading->words, sizeof reading->words);
    request[1 + REQUEST_WORDS] = token;
    request[2 + REQUEST_WORDS] = reader->results + slot * ENTRY_BYTES;
    memcpy(reader->asked + slot * REQUEST_BYTES, request, sizeof request);
}

/* Take entries for what was found to be read, write there what it is, and read what lies here; 0 entries where it is no
 * more as it was found. To be called with the lock held since then, or where others have run. */
void readings_take(Box *box, const Layout *layout, const Walk *walk, uint64_t call, int side, Taken *taken)
{
    Reader *reader = &box->reader;
    unsigned int count = readings_of(layout);
    taken->parts = 0;
    if (count == 0 || reader->entries == NULL || !entries_take(reader->entries, count, taken)) {
        return;
    }
    for (unsigned int index = 0; index < count; index++) {
        Reading reading = reading_at(layout, index);
        uint64_t slot = taken->first + index, token = taken->token + index;
        if (!adapt(&reading, walk, layout) || !is_there(walk, &reading)) {
            waive(reader, slot, token);
            continue;
        }
        put_entry(reader->page + slot * ENTRY_BYTES, token, call, &reading, index, side);
        if (reading.device < 0) {
            read_here(walk, &reading, reader->page + slot * ENTRY_BYTES, token);
            memset(reader->asked + slot * REQUEST_BYTES, 0, REQUEST_BYTES);
            continue;
        }
        put_request(reader, walk, &reading, slot, token);
        taken->parts = (uint64_t)reading.words[1] > taken->parts ? (unsigned int)reading.words[1] : taken->parts;
    }
}

/* Ask for nothing of those tensors that lie elsewhere by now: others have run since their entries were taken. */
static void forget_moved(const Reader *reader, const Layout *layout, const Walk *walk, const Taken *taken)
{
    for (unsigned int index = 0; index < taken->count; index++) {
        Reading reading = reading_at(layout, index);
        if (reading.device >= 0 && (!adapt(&reading, walk, layout) || !is_there(walk, &reading))) {
            waive(reader, taken->first + index, taken->token + index);
        }
    }
}

/* Enqueue launches for entries that are asked for; whether the driver took them. */
static int launch(const Launcher *launcher, const Taken *taken)
{
    const Lane *lane = &taken->lane;
    void *stream = (void *)(uintptr_t)lane->stream, *function = (void *)(uintptr_t)lane->function;
    for (unsigned int at = 0; at < taken->count; at += launcher->most_tensors) {
        unsigned int left = taken->count - at, count = left < launcher->most_tensors ? left : launcher->most_tensors;
        size_t offset = (size_t)(taken->first + at) * REQUEST_BYTES;
        uint64_t values[4] = {launcher->requests + offset, lane->scratch, 0, 0}; /* triton's own are null, and last */
        void *pointers[4] = {&values[0], &values[1], &values[2], &values[3]};
        if (taken->parts > launcher->many_parts) {
            values[0] = lane->scratch + launcher->copied;
            if (launcher->copy(values[0], launcher->asked + offset, (size_t)count * REQUEST_BYTES, stream) != 0) {
                return 0;
            }
        }
        if (launcher->launch(function, taken->parts, count, 1, launcher->threads, 1, 1, lane->shared, stream, pointers,
                             NULL) != 0) {
            return 0;
        }
    }
    return 1;
}

static uint64_t ticks(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Wait until the device has written the last of some entries: it reads them in their order. */
static void wait(const Launcher *launcher, const char *page, const Taken *taken)
{
    uint64_t until = ticks() + SPIN_NANOSECONDS;
    for (unsigned int index = 0; index < taken->count;) {
        const char *entry = page + (size_t)(taken->first + index) * ENTRY_BYTES;
        uint64_t token = *(const volatile uint64_t *)(const void *)(entry + RESULT_OFFSET + TOKEN_OFFSET);
        if (token == taken->token + index) {
            index++;
        }
        else if (ticks() > until) {
            (void)launcher->synchronize((void *)(uintptr_t)taken->lane.stream);
            return;
        }
    }
}

/* Launch what is asked for, and wait for it where that is wanted; without the interpreter's lock, for the driver may wait
 * for other threads of the program. A dead context takes nothing: that stays pending, as it is. */
static void run(const Launcher *launcher, const char *page, PyThread_type_lock launching, const Taken *taken)
{
    int mode = CAPTURE_RELAXED; /* or a graph that another thread captures would end */
    launcher->exchange_mode(&mode);
    PyThread_acquire_lock(launching, WAIT_LOCK); /* a copied request is the launch's that follows */
    int is_launched = launch(launcher, taken);
    PyThread_release_lock(launching);
    if (is_launched && launcher->waits) {
        wait(launcher, page, taken);
    }
    launcher->exchange_mode(&mode);
}

/* Have the device read the tensors that entries were taken for. */
void readings_start(Box *box, const Layout *layout, const Walk *walk, const Taken *taken)
{
    if (taken->parts == 0) {
        return;
    }
    Entries *entries = box->reader.entries;
    if (entries == NULL) { /* the page is being closed, and what is not read is left so */
        return;
    }
    forget_moved(&box->reader, layout, walk, taken);
    const Launcher launcher = box->reader.launcher;
    const char *page = box->reader.page;
    Py_INCREF((PyObject *)entries);
    Py_BEGIN_ALLOW_THREADS
    run(&launcher, page, entries->launching, taken);
    Py_END_ALLOW_THREADS
    Py_DECREF((PyObject *)entries);
}

/* Read by a page from now on: its entries, where it lies and where the device writes, where requests lie for host and
 * device, the driver's functions, and numbers of device_stats.py. */
PyObject *use_reader(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entries", "page", "results", "asked", "requests", "driver", "numbers", "waits", NULL};
    Reader *reader = &((Box *)self)->reader;
    Launcher *launcher = &reader->launcher;
    PyObject *entries;
    unsigned long long page, results, asked, requests, driver[4];
    int waits;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!KKKK(KKKK)(IIII)p", names, &EntriesType, &entries, &page, &results,
                                     &asked, &requests, &driver[0], &driver[1], &driver[2], &driver[3],
                                     &launcher->most_tensors, &launcher->many_parts, &launcher->threads,
                                     &launcher->copied, &waits)) {
        return NULL;
    }
    Py_INCREF(entries);
    Py_XSETREF(reader->entries, (Entries *)entries);
    reader->page = (char *)(uintptr_t)page;
    reader->results = results;
    launcher->asked = reader->asked = (char *)(uintptr_t)asked;
    launcher->requests = requests;
    launcher->launch = (LaunchKernel)(uintptr_t)driver[0];
    launcher->copy = (CopyToDevice)(uintptr_t)driver[1];
    launcher->synchronize = (Synchronize)(uintptr_t)driver[2];
    launcher->exchange_mode = (ExchangeMode)(uintptr_t)driver[3];
    launcher->waits = (char)waits;
    forget_lanes(reader);
    Py_RETURN_NONE;
}

/* Ask for what each stream needs once more. */
PyObject *forget_readers(PyObject *self, PyObject *unused)
{
    (void)unused;
    forget_lanes(&((Box *)self)->reader);
    Py_RETURN_NONE;
}

/* Read nothing any more. */
PyObject *stop_reading(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_CLEAR(((Box *)self)->reader.entries);
    Py_RETURN_NONE;
}
