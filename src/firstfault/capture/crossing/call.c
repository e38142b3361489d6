/* A call between its begin and its end: the lines that are written of it, and its markers. */
#include "crossing.h"
#include "line.h"
#include <structmember.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* --- threads */

static _Thread_local struct {
    uint64_t serial; /* of the box that ``thread`` belongs to */
    uint64_t state;  /* the number of the interpreter's state for this thread, which keeps ``thread`` */
    Thread *thread;
} current;

/* Let go of an error of ours. What interrupts the program is its own, and stays set. */
void forgive(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
}

static PyObject *thread_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    Thread *thread = (Thread *)type->tp_alloc(type, 0);
    if (thread == NULL) {
        return NULL;
    }
    thread->tid = (long)syscall(SYS_gettid);
    thread->calls = PyList_New(0);
    if (thread->calls == NULL) {
        Py_DECREF(thread);
        return NULL;
    }
    return (PyObject *)thread;
}

static int thread_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Thread *)self)->calls);
    return 0;
}

static int thread_clear(PyObject *self)
{
    Py_CLEAR(((Thread *)self)->calls);
    return 0;
}

static void thread_dealloc(PyObject *self)
{
    if (current.thread == (Thread *)self) {
        current.serial = 0;
    }
    PyObject_GC_UnTrack(self);
    thread_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef thread_members[] = {
    {"calls", T_OBJECT_EX, offsetof(Thread, calls), 0, NULL},
    {"busy", T_BOOL, offsetof(Thread, busy), 0, NULL},
    {"tid", T_LONG, offsetof(Thread, tid), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject ThreadType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Thread",
    .tp_basicsize = sizeof(Thread),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = thread_new,
    .tp_dealloc = thread_dealloc,
    .tp_traverse = thread_traverse,
    .tp_clear = thread_clear,
    .tp_members = thread_members,
};

/* This thread's state, borrowed from what keeps it as long as the thread lives; NULL where unknown.
 *
 * A thread of the program's C may call Python time and again, each time with another state of the interpreter's, and
 * what the last one kept may be gone by then.
 */
Thread *thread_of(Box *box)
{
    uint64_t state = PyThreadState_GetID(PyThreadState_Get());
    if (current.serial == box->serial && current.state == state) {
        return current.thread;
    }
    PyObject *found = PyObject_GetAttrString(box->threads, "current");
    if (found == NULL) {
        forgive();
        return NULL;
    }
    Py_DECREF(found); /* a thread-local of the interpreter's has it */
    if (!Py_IS_TYPE(found, &ThreadType)) {
        return NULL;
    }
    current.thread = (Thread *)found;
    current.serial = box->serial;
    current.state = state;
    return current.thread;
}

/* --- lines */

static void put_look(Line *line, const Look *look, const uint64_t *addresses)
{
    PUT_FIELD(line, "layout", look->known->number);
    PUT(line, ",\"ptrs\":[");
    for (int index = 0; index < look->tensors; index++) {
        if (index > 0) {
            PUT(line, ",");
        }
        put_number(line, addresses[index]);
    }
    PUT(line, "]");
}

#define LONGEST_SHAPES 4096

/* What ends the line of a call: its shapes, where they are not those that are described; 0 where there is no room. */
static int put_end(Line *line, const Look *look, const Flat *flat)
{
    Shape shapes[MOST_VALUES];
    if (look_shapes(look, flat, shapes) &&
        !put_shapes(line, look->known->shape, shapes, look->tensors, line->text + LONGEST_SHAPES - 4)) {
        return 0;
    }
    PUT(line, "}\n");
    return 1;
}

/* Whether a line of such a look is sure to have room in this segment, which describes the look. */
static int has_room(const Box *box, const Look *look, size_t more)
{
    const Cursor *cursor = box->cursor;
    return cursor->at != NULL && look->known->segment == cursor->segment && look->known->tensors == look->tensors &&
           LONGEST_START + LONGEST_ADDRESS * (size_t)look->tensors + more <= cursor->size - cursor->end;
}

static void write_text(Box *box, const Line *line)
{
    cursor_append(box->cursor, line->text, (size_t)(line->end - line->text), box->cursor->segment);
}

/* --- where the device is */

static int place_asked(Box *box, int *device, uint64_t *stream)
{
    PyObject *is_captured = PyObject_CallNoArgs(box->capturing);
    PyObject *ordinal = is_captured == Py_False ? PyObject_CallNoArgs(box->device) : NULL;
    PyObject *handle = ordinal == NULL ? NULL : PyObject_CallOneArg(box->stream, ordinal);
    long number = handle == NULL ? -1 : PyLong_AsLong(ordinal);
    *stream = handle == NULL ? 0 : PyLong_AsUnsignedLongLong(handle);
    *device = (int)number;
    Py_XDECREF(is_captured);
    Py_XDECREF(ordinal);
    Py_XDECREF(handle);
    if (PyErr_Occurred()) {
        forgive();
        return 0;
    }
    return number >= 0;
}

/* The current device and stream; 0 where that is not for here: something fails, or is captured. */
static int place(Box *box, int *device, uint64_t *stream)
{
    if (box->get_device == NULL) {
        return place_asked(box, device, stream);
    }
    void *handle = NULL;
    int status = 0;
    if (box->get_device(device) != 0 || box->get_stream(*device, &handle) != 0 ||
        box->is_capturing(handle, &status) != 0 || status != 0) {
        return 0;
    }
    *stream = (uint64_t)(uintptr_t)handle;
    return *device >= 0;
}

/* The slot of a stream, borrowed; NULL where it cannot be had. */
static PyObject *slot_of(Box *box, int device, uint64_t stream)
{
    for (unsigned int index = 0; index < box->used; index++) {
        if (box->streams[index].stream == stream && box->streams[index].device == device) {
            return box->streams[index].slot;
        }
    }
    PyObject *slot = PyObject_CallMethod(box->markers, "slot", "iK", device, (unsigned long long)stream);
    if (slot == NULL) {
        forgive();
        return NULL;
    }
    Stream *kept = &box->streams[box->used < MOST_STREAMS ? box->used++ : box->oldest++ % MOST_STREAMS];
    kept->device = device;
    kept->stream = stream;
    Py_XSETREF(kept->slot, slot);
    return slot;
}

static int mark(PyObject *slot, uint64_t stream, uint64_t marker)
{
    if (Py_IS_TYPE(slot, &SlotType)) {
        slot_mark((Slot *)slot, stream, marker);
        return 0;
    }
    PyObject *done = PyObject_CallMethod(slot, "mark", "KK", (unsigned long long)stream, (unsigned long long)marker);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Whether markers are wanted that there can be from now on: to open them is not for here. */
static int markers_are_due(Box *box)
{
    if (box->cuda == NULL) {
        return 0;
    }
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("_initialized")) == NULL) {
        PyErr_Clear();
        return 1;
    }
    PyObject *initialized = PyDict_GetItemWithError(box->cuda, name);
    PyErr_Clear();
    return initialized != Py_False;
}

/* --- calls */

#define MOST_FREE 32

static Call *free_calls[MOST_FREE];
static int free_count;

static Call *call_new(Box *box, Thread *thread, PyObject *op)
{
    Call *call = free_count > 0 ? free_calls[--free_count] : PyObject_Malloc(sizeof(Call));
    if (call == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    (void)PyObject_Init((PyObject *)call, &CallType);
    call->n = 0;
    call->is_marked = 0;
    call->mutates = NULL;
    call->layout = NULL;
    call->watched = NULL;
    call->given = (Arguments){NULL, 0, NULL, NULL, NULL};
    Py_INCREF(call->op = op);
    Py_INCREF(call->thread = thread);
    Py_INCREF(call->box = box);
    return call;
}

static void call_dealloc(PyObject *self)
{
    Call *call = (Call *)self;
    Py_XDECREF(call->op);
    Py_XDECREF(call->mutates);
    call_forget(call);
    Py_XDECREF((PyObject *)call->thread);
    Py_XDECREF((PyObject *)call->box);
    if (free_count < MOST_FREE) {
        free_calls[free_count++] = call;
    }
    else {
        PyObject_Free(call);
    }
}

static unsigned long long number_of(PyObject *call)
{
    if (Py_IS_TYPE(call, &CallType)) {
        return ((Call *)call)->n;
    }
    PyObject *n = PyObject_GetAttrString(call, "n");
    unsigned long long number = n == NULL ? 0 : PyLong_AsUnsignedLongLong(n);
    Py_XDECREF(n);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return number;
}

static int are_exact(PyObject *names)
{
    for (Py_ssize_t index = 0; names != NULL && index < PyTuple_GET_SIZE(names); index++) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(names, index))) {
            return 0;
        }
    }
    return 1;
}

/* Take a call off its thread's stack, with any that were never closed; whether it was there. */
static int leave(Call *call)
{
    PyObject *calls = call->thread->calls;
    Py_ssize_t end = PyList_GET_SIZE(calls), index = end;
    while (index > 0 && PyList_GET_ITEM(calls, index - 1) != (PyObject *)call) {
        index--;
    }
    if (index == 0) {
        return 0;
    }
    if (PyList_SetSlice(calls, index - 1, end, NULL) < 0) {
        PyErr_Clear();
    }
    return 1;
}

/* The number of the call that a thread is in; 0 for none. As parent_in in open_call.py, it lets go of calls that their
 * boundary never came to hold: a signal's handler raised where they had begun. */
static unsigned long long parent_in(PyObject *calls)
{
    Py_ssize_t depth = PyList_GET_SIZE(calls);
    while (depth > 0 && Py_REFCNT(PyList_GET_ITEM(calls, depth - 1)) == 1 &&
           PyList_SetSlice(calls, depth - 1, depth, NULL) == 0) {
        depth = PyList_GET_SIZE(calls);
    }
    PyErr_Clear();
    return depth > 0 ? number_of(PyList_GET_ITEM(calls, depth - 1)) : 0;
}

/* Put a call on its thread's stack, with the next number; whether that could be done. */
int call_push(Box *box, Thread *thread, PyObject *op, int is_marked, Call **begun, unsigned long long *parent)
{
    Call *call = call_new(box, thread, op);
    *parent = parent_in(thread->calls);
    if (call == NULL || PyList_Append(thread->calls, (PyObject *)call) < 0) {
        PyErr_Clear();
        Py_XDECREF((PyObject *)call);
        return 0;
    }
    call->n = ++box->counter->last;
    call->is_marked = (char)is_marked;
    *begun = call;
    return 1;
}

/* Write that a call begins, of which all is known by now. */
static int begin_known(Box *box, Thread *thread, const Given *given, Begin *begin, const Line *end, Call **begun)
{
    unsigned long long parent;
    if (!has_room(box, begin->look, (size_t)(end->end - end->text)) ||
        !call_push(box, thread, given->op, begin->slot != NULL, begun, &parent)) {
        return 0;
    }
    char text[LONGEST_SHORT];
    Line line = {text, text};
    PUT(&line, "{\"type\":\"call\",\"n\":");
    put_start(&line, (*begun)->n, now());
    PUT_FIELD(&line, "parent", parent);
    PUT_FIELD(&line, "tid", thread->tid);
    put_place(&line, begin->device, begin->stream);
    PUT_FIELD(&line, "graph", given->graph);
    put_look(&line, begin->look, begin->addresses);
    write_text(box, &line);
    write_text(box, end);
    return 1;
}

/* Leave a line to Python that the system did not take whole. */
static int leave_rest(Box *box, const char *text, size_t length, long long written)
{
    PyObject *done = PyObject_CallMethod(box->slow, "rest", "y#L", text, (Py_ssize_t)length, written);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Write a line to the file; -1 on an error of ours, which only tests let out. */
int append_text(Box *box, const char *text, size_t length)
{
    long long written = appender_append(box->appender, text, length);
    return written == (long long)length ? 0 : leave_rest(box, text, length, written);
}

static int append_line(Box *box, const Line *line)
{
    return append_text(box, line->text, (size_t)(line->end - line->text));
}

/* What is written of all calls of an operator at a place: its names, and after the thread its site; NULL if too long. */
static PyObject *text_of(Box *box, const Where *where)
{
    PyObject **kept = form_text(&box->inputs, where);
    if (kept == NULL || *kept != NULL) {
        return kept == NULL ? NULL : Py_NewRef(*kept);
    }
    PyObject *text = PyObject_CallMethod(box->slow, "text", "OOO", where->op, where->target, where->site);
    if (text == NULL || !PyTuple_CheckExact(text) || PyTuple_GET_SIZE(text) != 2 ||
        !PyBytes_CheckExact(PyTuple_GET_ITEM(text, 0)) || !PyBytes_CheckExact(PyTuple_GET_ITEM(text, 1)) ||
        PyBytes_GET_SIZE(PyTuple_GET_ITEM(text, 0)) + PyBytes_GET_SIZE(PyTuple_GET_ITEM(text, 1)) > LONGEST_TEXT) {
        Py_XDECREF(text);
        return NULL;
    }
    kept = form_text(&box->inputs, where); /* once more: Python may have let others in */
    if (kept == NULL) {
        PyErr_Clear();
    }
    else if (*kept == NULL) {
        *kept = Py_NewRef(text);
    }
    return text;
}

/* Write the names of a call that begins; -1 on an error of ours, which only tests let out. */
static int begin_named(Box *box, Thread *thread, const Given *given, Begin *begin, Call **begun)
{
    PyObject *text = text_of(box, &begin->where);
    if (text == NULL) {
        forgive();
        return 0;
    }
    char written[LONGEST_SHORT];
    Line line = {written, written};
    unsigned long long parent;
    if (!call_push(box, thread, given->op, begin->slot != NULL, begun, &parent)) {
        Py_DECREF(text);
        return 0;
    }
    PUT(&line, "{\"type\":\"call\",\"n\":");
    put_start(&line, (*begun)->n, now());
    put_bytes(&line, PyTuple_GET_ITEM(text, 0));
    PUT_FIELD(&line, "parent", parent);
    PUT_FIELD(&line, "tid", thread->tid);
    put_bytes(&line, PyTuple_GET_ITEM(text, 1));
    put_place(&line, begin->device, begin->stream);
    PUT_FIELD(&line, "graph", given->graph);
    PUT(&line, "}\n");
    Py_DECREF(text);
    return append_line(box, &line) < 0 ? -1 : 1;
}

/* Find out where a call begins; 0 where that is not for here. */
int begin_placed(Box *box, Begin *begin)
{
    begin->device = -1;
    begin->stream = 0;
    if (box->markers == NULL) {
        return 1;
    }
    if (place(box, &begin->device, &begin->stream)) {
        begin->slot = Py_XNewRef(slot_of(box, begin->device, begin->stream));
    }
    return begin->slot != NULL;
}

static int begin_looked(Box *box, Thread *thread, const Given *given, Begin *begin, Call **begun)
{
    begin->look = look_find(&box->inputs, &begin->where, &begin->flat);
    if (begin->look == NULL) {
        return 0;
    }
    char text[LONGEST_SHAPES];
    Line end = {text, text};
    look_addresses(begin->look, &begin->flat, begin->addresses);
    return begin_placed(box, begin) && has_room(box, begin->look, 0) && put_end(&end, begin->look, &begin->flat) &&
           begin_known(box, thread, given, begin, &end, begun);
}

/* Write that a call begins whose values look like those of one before. */
static int begin_with_values(Box *box, Thread *thread, const Given *given, Begin *begin, Call **begun)
{
    begin->flat.values = begin->flat.types = 0;
    Py_ssize_t all = given->count + (given->names == NULL ? 0 : PyTuple_GET_SIZE(given->names));
    if (!flatten(&begin->flat, given->args, all, MOST_DEEP)) {
        return 0;
    }
    tensors_fetch(begin->flat.value, begin->flat.values);
    __builtin_prefetch(box->cursor->at + box->cursor->end, 1);
    flat_hold(&begin->flat);
    looks_hold(&box->inputs);
    int done = begin_looked(box, thread, given, begin, begun);
    looks_drop(&box->inputs);
    flat_drop(&begin->flat);
    return done;
}

/* Write that a call begins, at a place that is known. */
static int begin_at(Box *box, Thread *thread, const Given *given, PyObject *site, Begin *begin, Call **begun)
{
    if (box->cursor != NULL) {
        begin->where = (Where){given->op, given->target, site, given->names};
        return begin_with_values(box, thread, given, begin, begun);
    }
    begin->where = (Where){given->op, given->target, site, NULL};
    if (box->tells_all) {
        return given->graph == 0 ? begin_exact(box, thread, given, begin, begun) : 0;
    }
    return begin_placed(box, begin) ? begin_named(box, thread, given, begin, begun) : 0;
}

static int is_for_here(Box *box, const Given *given)
{
    return (box->cursor == NULL || box->cursor->at != NULL) && !markers_are_due(box) &&
           (given->graph == 0 || !box->in_graphs) && PyUnicode_CheckExact(given->op) &&
           PyUnicode_CheckExact(given->target) && are_exact(given->names);
}

/* Write that a call begins; 0, with nothing done and no error, where it is not one that can be written here.
 *
 * ``frame`` is the one that it was made in. -1 on an error: of a stand-in for the driver, one that only
 * tests let out, or what interrupts the program meanwhile.
 */
int box_begin(Box *box, Thread *thread, const Given *given, PyFrameObject *frame, Call **begun)
{
    Begin begin;
    if (!is_for_here(box, given)) {
        box->left++;
        return 0;
    }
    thread->busy = 1;
    begin.slot = NULL;
    PyObject *site = site_of(frame);
    int done = site == NULL ? 0 : begin_at(box, thread, given, site, &begin, begun);
    if (site == NULL) {
        forgive();
    }
    Py_XDECREF(site);
    if (done == 0 && PyErr_Occurred()) {
        done = -1;
    }
    if (done == 1 && begin.slot != NULL && mark(begin.slot, begin.stream, (uint64_t)(*begun)->n << 1) < 0) {
        done = -1;
    }
    if (done < 0 && *begun != NULL) {
        (void)leave(*begun);
        Py_CLEAR(*begun);
    }
    Py_XDECREF(begin.slot);
    box->here += done == 1;
    box->left += done != 1;
    thread->busy = 0;
    return done;
}

/* What a call is declared to change, as it stands in its line; NULL where that cannot be told. */
static PyObject *mutated_of(Call *call)
{
    Box *box = call->box;
    if (box->mutates != call->mutates) {
        PyObject *mutated = PyObject_CallMethod(box->slow, "mutated", "O", call->mutates);
        if (mutated == NULL || !PyBytes_CheckExact(mutated) || PyBytes_GET_SIZE(mutated) > 4096) {
            forgive();
            Py_XDECREF(mutated);
            return NULL;
        }
        Py_XSETREF(box->mutated, mutated);
        Py_INCREF(call->mutates);
        Py_XSETREF(box->mutates, call->mutates);
    }
    return Py_NewRef(box->mutated);
}

static int return_looked(Call *call, const Return *record, const Look *look, const Flat *flat, PyObject *mutated)
{
    Box *box = call->box;
    char start_text[LONGEST_START], look_text[LONGEST_SHORT], end_text[LONGEST_SHAPES];
    Line start = {start_text, start_text}, middle = {look_text, look_text}, end = {end_text, end_text};
    uint64_t addresses[MOST_VALUES];
    size_t more = mutated == NULL ? 0 : (size_t)PyBytes_GET_SIZE(mutated);
    if (!has_room(box, look, more) || !put_end(&end, look, flat) ||
        !has_room(box, look, more + (size_t)(end.end - end.text))) {
        return 0;
    }
    look_addresses(look, flat, addresses);
    PUT(&start, "{\"type\":\"return\",\"n\":");
    put_start(&start, call->n, record->t);
    PUT_FIELD(&start, "tid", call->thread->tid);
    put_place(&middle, record->device, record->stream);
    put_look(&middle, look, addresses);
    write_text(box, &start);
    if (more > 0) {
        cursor_append(box->cursor, PyBytes_AS_STRING(mutated), more, box->cursor->segment);
    }
    write_text(box, &middle);
    write_text(box, &end);
    return 1;
}

/* Write a return that looks like one before; 0, with nothing done, where it does not. */
static int return_known(Call *call, PyObject *result, const Return *record)
{
    Box *box = call->box;
    Flat flat = {.values = 0, .types = 0};
    PyObject *mutated = NULL;
    if (call->mutates != NULL && (mutated = mutated_of(call)) == NULL) {
        return 0;
    }
    Where where = {call->op, NULL, NULL, NULL};
    if (!flatten(&flat, &result, 1, MOST_DEEP)) {
        Py_XDECREF(mutated);
        return 0;
    }
    flat_hold(&flat);
    looks_hold(&box->outputs);
    Look *look = look_find(&box->outputs, &where, &flat);
    int done = look != NULL && return_looked(call, record, look, &flat, mutated);
    looks_drop(&box->outputs);
    flat_drop(&flat);
    Py_XDECREF(mutated);
    return done;
}

static int mark_end(Call *call, Return *record)
{
    Box *box = call->box;
    record->device = -1;
    record->stream = 0;
    record->is_placed = !call->is_marked; /* then there is nothing to mark */
    if (!call->is_marked || box->markers == NULL || !place(box, &record->device, &record->stream)) {
        return 0;
    }
    PyObject *slot = slot_of(box, record->device, record->stream);
    if (slot == NULL) {
        return 0;
    }
    record->is_placed = 1;
    Py_INCREF(slot);
    int status = mark(slot, record->stream, (uint64_t)call->n << 1 | 1);
    Py_DECREF(slot);
    return status;
}

static int handed_over(PyObject *done)
{
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Write the return of a call of which only names are written. */
static int return_named(Call *call, const Return *record)
{
    char text[LONGEST_SHORT];
    Line line = {text, text};
    PUT(&line, "{\"type\":\"return\",\"n\":");
    put_start(&line, call->n, record->t);
    PUT_FIELD(&line, "tid", call->thread->tid);
    put_place(&line, record->device, record->stream);
    PUT(&line, "}\n");
    return append_line(call->box, &line);
}

/* Write that a call came back whose marker is written; 0 where that is not for here, -1 on an error. */
static int return_here(Call *call, PyObject *result, const Return *record)
{
    if (call->box->cursor != NULL) {
        return return_known(call, result, record);
    }
    if (call->box->tells_all) {
        return return_exact(call, result, record);
    }
    return return_named(call, record) < 0 ? -1 : 1;
}

/* Leave to Python that a call came back. */
static int leave_return(Call *call, PyObject *result, const Return *record)
{
    PyObject *changes = call->layout != NULL ? call_changed(call) : Py_NewRef(call->mutates == NULL ? Py_None : call->mutates);
    if (changes == NULL) {
        return -1;
    }
    int status = handed_over(PyObject_CallMethod(call->box->slow, "came_back", "KOOOOKiKO", call->n, call->op,
                                                 (PyObject *)call->thread, changes, result,
                                                 (unsigned long long)record->t, record->device,
                                                 (unsigned long long)record->stream,
                                                 record->is_placed ? Py_True : Py_False));
    Py_DECREF(changes);
    return status;
}

/* Write that a call came back with ``result``; -1 on an error, which only tests let out. */
int call_returned(Call *call, PyObject *result)
{
    Return record;
    if (call->box->closed || !leave(call)) {
        return 0;
    }
    record.t = now();
    call->thread->busy = 1;
    int status = mark_end(call, &record);
    int done = status < 0 || PyErr_Occurred() != NULL ? -1 : record.is_placed ? return_here(call, result, &record) : 0;
    call->thread->busy = 0;
    if (PyErr_Occurred()) { /* what interrupts the program, as well */
        return -1;
    }
    call->box->here += done != 0;
    call->box->left += done == 0;
    return done < 0 ? -1 : done > 0 ? 0 : leave_return(call, result, &record);
}

/* Write that a call ended in ``error``; -1 on an error of ours, which only tests let out. */
int call_raised(Call *call, PyObject *error)
{
    if (call->box->closed || !leave(call)) {
        return 0;
    }
    return handed_over(PyObject_CallMethod(call->box->slow, "failed", "KOOOO", call->n, call->op,
                                           (PyObject *)call->thread, call->is_marked ? Py_True : Py_False, error));
}

static PyObject *returned(PyObject *self, PyObject *result)
{
    return call_returned((Call *)self, result) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *raised(PyObject *self, PyObject *error)
{
    return call_raised((Call *)self, error) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *get_mutates(PyObject *self, void *unused)
{
    (void)unused;
    PyObject *mutates = ((Call *)self)->mutates;
    return mutates == NULL ? PyTuple_New(0) : Py_NewRef(mutates);
}

static int set_mutates(PyObject *self, PyObject *mutates, void *unused)
{
    (void)unused;
    int is_some = mutates == NULL ? 0 : PyObject_IsTrue(mutates);
    if (is_some < 0) {
        return -1;
    }
    PyObject *kept = is_some ? Py_NewRef(mutates) : NULL;
    Py_XSETREF(((Call *)self)->mutates, kept);
    return 0;
}

static PyMethodDef call_methods[] = {
    {"returned", returned, METH_O, NULL},
    {"raised", raised, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef call_members[] = {
    {"n", T_ULONGLONG, offsetof(Call, n), READONLY, NULL},
    {"op", T_OBJECT, offsetof(Call, op), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef call_attributes[] = {
    {"mutates", get_mutates, set_mutates, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Call",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = call_dealloc,
    .tp_methods = call_methods,
    .tp_members = call_members,
    .tp_getset = call_attributes,
};
