/* A call of which nothing is lost: what is described already is referred to, and all that may differ is told.
 *
 *     {"type":"call","n":42,…,"layout":7,"storages":[140232],"offsets":[64],"versions":[3],"shapes":[[0,[8,256]]],
 *      "scalars":[[2,17]]}
 *
 * ``in_place.py`` says which arguments a call has changed, ``layouts.py`` what such a line stands for. Where the device
 * reads the values of the tensors as well, the line has the token of the first.
 */
#include "crossing.h"
#include "line.h"

#define LONGEST_PLACES 64 /* of a tensor: its storage, offset and version */
#define LONGEST_SCALAR 48 /* its index, and what is no string */

/* --- the tail of a line: what it says of its values */

static void put_storages(Line *line, const Walk *walk)
{
    PUT(line, ",\"storages\":[");
    for (int index = 0; index < walk->tensors; index++) {
        if (index > 0) {
            PUT(line, ",");
        }
        put_number(line, walk->state[index].storage);
    }
    PUT(line, "]");
}

/* Where the tensors begin in their storages, if one of them does not begin where that does. */
static void put_offsets(Line *line, const Walk *walk)
{
    uint64_t any = 0;
    for (int index = 0; index < walk->tensors; index++) {
        any |= walk->state[index].offset;
    }
    for (int index = 0; any != 0 && index < walk->tensors; index++) {
        if (index == 0) {
            PUT(line, ",\"offsets\":[");
        }
        else {
            PUT(line, ",");
        }
        put_number(line, walk->state[index].offset);
    }
    if (any != 0) {
        PUT(line, "]");
    }
}

/* The versions of those tensors that have one. */
static void put_versions(Line *line, const Walk *walk)
{
    int count = 0;
    for (int index = 0; index < walk->tensors; index++) {
        if (!walk->state[index].has_version) {
            continue;
        }
        if (count++ == 0) {
            PUT(line, ",\"versions\":[");
        }
        else {
            PUT(line, ",");
        }
        put_number(line, walk->state[index].version);
    }
    if (count > 0) {
        PUT(line, "]");
    }
}

/* Whether a plain value is printed as another is: True is not 1, nor 0.0 -0.0. */
static int same_plain(PyObject *one, PyObject *other)
{
    if (one == other) {
        return 1;
    }
    if (Py_TYPE(one) != Py_TYPE(other)) {
        return 0;
    }
    if (PyFloat_CheckExact(one)) {
        double first = PyFloat_AS_DOUBLE(one), second = PyFloat_AS_DOUBLE(other);
        return memcmp(&first, &second, sizeof first) == 0;
    }
    if (PyLong_CheckExact(one)) {
        return PyLong_AsLongLong(one) == PyLong_AsLongLong(other);
    }
    return PyUnicode_CheckExact(one) && PyUnicode_Compare(one, other) == 0;
}

static void put_integer(Line *line, long long value)
{
    if (value < 0) {
        PUT(line, "-");
    }
    put_number(line, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

static int put_float(Line *line, double value)
{
    char *text = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (text == NULL) {
        return 0;
    }
    put(line, text, strlen(text));
    PyMem_Free(text);
    return 1;
}

/* A string that needs no escapes; 0 for any other. */
static int put_string(Line *line, PyObject *value)
{
    if (!PyUnicode_IS_COMPACT_ASCII(value)) {
        return 0;
    }
    const char *text = (const char *)PyUnicode_1BYTE_DATA(value);
    size_t length = (size_t)PyUnicode_GET_LENGTH(value);
    for (size_t index = 0; index < length; index++) {
        if (text[index] < ' ' || text[index] == '"' || text[index] == '\\' || text[index] == 127) {
            return 0;
        }
    }
    PUT(line, "\"");
    put(line, text, length);
    PUT(line, "\"");
    return 1;
}

static int put_plain(Line *line, PyObject *value)
{
    if (value == Py_None) {
        PUT(line, "null");
        return 1;
    }
    if (PyBool_Check(value)) {
        value == Py_True ? PUT(line, "true") : PUT(line, "false");
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        put_integer(line, PyLong_AsLongLong(value));
        return 1;
    }
    return PyFloat_CheckExact(value) ? put_float(line, PyFloat_AS_DOUBLE(value)) : put_string(line, value);
}

/* The plain values that are others than in the description, by their index; 0 where one cannot be written here. */
static int put_scalars(Line *line, const Layout *layout, const Walk *walk, const char *limit)
{
    int count = 0;
    for (int index = 0; index < walk->plains; index++) {
        PyObject *value = walk->plain[index];
        if (same_plain(layout->plain[index], value)) {
            continue;
        }
        Py_ssize_t length = PyUnicode_CheckExact(value) ? PyUnicode_GET_LENGTH(value) : 0;
        if (limit - line->end < LONGEST_SCALAR + length) {
            return 0;
        }
        if (count++ == 0) {
            PUT(line, ",\"scalars\":[[");
        }
        else {
            PUT(line, "],[");
        }
        put_number(line, (uint64_t)index);
        PUT(line, ",");
        if (!put_plain(line, value)) {
            return 0;
        }
    }
    if (count > 0) {
        PUT(line, "]]");
    }
    return 1;
}

/* Write what a line says of its values, behind the room for its head; where it ends, or NULL where it has no room. */
static char *put_tail(Walk *walk, const Layout *layout)
{
    _Static_assert(MOST_TENSORS * LONGEST_PLACES + 256 < LONGEST_TAIL, "the places of all tensors have room");
    Line line = {walk->line + LONGEST_HEAD, walk->line + LONGEST_HEAD};
    PUT_FIELD(&line, "layout", layout->number);
    put_storages(&line, walk);
    put_offsets(&line, walk);
    put_versions(&line, walk);
    const char *limit = walk->line + sizeof walk->line - 4;
    if (!put_shapes(&line, layout->shape, walk->shape, walk->tensors, limit) ||
        !put_scalars(&line, layout, walk, limit)) {
        return NULL;
    }
    PUT(&line, "}\n");
    return line.end;
}

/* Write a line of which the tail is written; -1 on an error of ours. */
static int append_whole(Box *box, Walk *walk, const Line *head, const char *end)
{
    size_t length = (size_t)(head->end - head->text);
    char *start = walk->line + LONGEST_HEAD - length;
    memcpy(start, head->text, length);
    return append_text(box, start, (size_t)(end - start));
}

/* Whether the file that is written to describes a layout, and surely has room for a line more. */
static int is_open_for(const Box *box, const Layout *layout)
{
    const Appender *appender = box->appender;
    return appender->fd >= 0 && layout->stretch == appender->stretch &&
           appender->size + LONGEST_HEAD + LONGEST_TAIL <= appender->limit;
}

/* --- what a call changes in place */

/* An argument by its position or its keyword, borrowed; NULL for none. */
PyObject *argument_at(const Arguments *given, PyObject *root)
{
    if (PyLong_CheckExact(root)) {
        Py_ssize_t index = PyLong_AsSsize_t(root);
        if (given->tuple != NULL) {
            return index < PyTuple_GET_SIZE(given->tuple) ? PyTuple_GET_ITEM(given->tuple, index) : NULL;
        }
        return index < given->count ? given->values[index] : NULL;
    }
    if (given->tuple != NULL) {
        return PyDict_GetItemWithError(given->dict, root);
    }
    for (Py_ssize_t index = 0; given->names != NULL && index < PyTuple_GET_SIZE(given->names); index++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(given->names, index), root) == 0) {
            return given->values[given->count + index];
        }
    }
    return NULL;
}

/* Let go of what tells later which arguments have changed. */
void call_forget(Call *call)
{
    if (call->watched != call->few) {
        PyMem_Free(call->watched);
    }
    call->watched = NULL;
    Py_CLEAR(call->layout);
    Py_CLEAR(call->given.tuple);
    Py_CLEAR(call->given.dict);
}

/* Note how often the tensors of a call have been written to; 0 where there is no memory. */
static int watch(Call *call, const Walk *walk, const Given *given)
{
    int any = 0;
    for (int index = 0; index < walk->tensors; index++) {
        any |= walk->state[index].has_version;
    }
    if (!any) {
        return 1;
    }
    call->watched = walk->tensors <= FEW ? call->few : PyMem_Malloc((size_t)walk->tensors * sizeof(Watched));
    if (call->watched == NULL) {
        return 0;
    }
    for (int index = 0; index < walk->tensors; index++) {
        const State *state = &walk->state[index];
        call->watched[index] = (Watched){walk->tensor[index], state->version, state->has_version};
    }
    call->given = (Arguments){given->args, given->count, given->names, Py_XNewRef(given->tuple), Py_XNewRef(given->dict)};
    return 1;
}

/* Whether a tensor among the arguments is still there, and has been written to. */
static int was_written_to(const Call *call, int index)
{
    const Watched *watched = &call->watched[index];
    if (!watched->has_version) {
        return 0;
    }
    PyObject *now = value_at(&call->given, PyTuple_GET_ITEM(call->layout->paths, index));
    int is_changed = now != NULL && now == watched->tensor && is_tensor(now) &&
                     tensor_state(now).version != watched->version;
    forgive();
    Py_XDECREF(now);
    return is_changed;
}

/* Find out which tensors a call has changed in place; how many, or -1 on an error. */
static int find_changed(Call *call, uint8_t *changed)
{
    Layout *layout = call->layout;
    const uint8_t *declared = call->mutates == NULL ? NULL : layout_declared(layout, call->mutates);
    int count = 0;
    forgive();
    for (int index = 0; index < layout->tensors; index++) {
        changed[index] = (declared != NULL && declared[index]) || (call->watched != NULL && was_written_to(call, index));
        count += changed[index];
    }
    return PyErr_Occurred() ? -1 : count;
}

/* The paths of the tensors that a call has changed in place, as a list; NULL on an error. */
PyObject *call_changed(Call *call)
{
    uint8_t changed[MOST_TENSORS];
    PyObject *paths = find_changed(call, changed) < 0 ? NULL : PyList_New(0);
    for (int index = 0; paths != NULL && index < call->layout->tensors; index++) {
        if (changed[index] && PyList_Append(paths, PyTuple_GET_ITEM(call->layout->paths, index)) < 0) {
            Py_CLEAR(paths);
        }
    }
    return paths;
}

/* --- calls */

static int begin_written(Box *box, Thread *thread, const Given *given, Begin *begin, Walk *walk, Layout *layout,
                         Call **begun)
{
    char text[LONGEST_START];
    Line head = {text, text};
    unsigned long long parent;
    Taken taken;
    const char *end = put_tail(walk, layout);
    if (end == NULL || !readings_prepare(box, layout, walk, begin->device, begin->stream, &taken) ||
        !is_open_for(box, layout) || !call_push(box, thread, given->op, begin->slot != NULL, begun, &parent)) {
        return 0;
    }
    (*begun)->layout = (Layout *)Py_NewRef((PyObject *)layout);
    if (!watch(*begun, walk, given)) {
        PyErr_NoMemory();
        return -1;
    }
    readings_take(box, layout, walk, (*begun)->n, INPUTS, &taken);
    PUT(&head, "{\"type\":\"call\",\"n\":");
    put_start(&head, (*begun)->n, now());
    PUT_FIELD(&head, "parent", parent);
    PUT_FIELD(&head, "tid", thread->tid);
    put_place(&head, begin->device, begin->stream);
    PUT_FIELD(&head, "token", taken.token);
    int status = append_whole(box, walk, &head, end);
    readings_start(box, layout, walk, &taken);
    return status < 0 ? -1 : 1;
}

static int begin_walked(Box *box, Thread *thread, const Given *given, Begin *begin, Walk *walk, Call **begun)
{
    if (!walk_arguments(walk, given->args, given->count, given->names) || !begin_placed(box, begin)) {
        forgive();
        return 0;
    }
    Layout *layout = layout_find(&box->arguments, &begin->where, walk);
    if (layout == NULL) {
        return 0;
    }
    Py_INCREF((PyObject *)layout); /* what a call takes the place of on its thread's stack may run others */
    int done = begin_written(box, thread, given, begin, walk, layout, begun);
    Py_DECREF((PyObject *)layout);
    return done;
}

/* Write that a call begins that looks like one that is described; 0 where it does not, -1 on an error. */
int begin_exact(Box *box, Thread *thread, const Given *given, Begin *begin, Call **begun)
{
    Walk *walk = walk_new();
    if (walk == NULL) {
        forgive();
        return 0;
    }
    int done = begin_walked(box, thread, given, begin, walk, begun);
    walk_free(walk);
    return done;
}

/* The names of what a call has changed, as they stand in its line. */
static void put_changed(Line *head, const Layout *layout, const uint8_t *changed)
{
    char *start = head->end;
    for (int index = 0; index < layout->tensors; index++) {
        if (!changed[index]) {
            continue;
        }
        if (head->end == start) {
            PUT(head, ",\"mutated\":[");
        }
        else {
            PUT(head, ",");
        }
        put_bytes(head, PyTuple_GET_ITEM(layout->labels, index));
    }
    if (head->end != start) {
        PUT(head, "]");
    }
}

static int return_written(Call *call, const Return *record, Walk *walk, Layout *layout, const uint8_t *changed)
{
    Box *box = call->box;
    char text[LONGEST_HEAD];
    Line head = {text, text};
    Taken taken;
    const char *end = put_tail(walk, layout);
    if (end == NULL || !readings_prepare(box, layout, walk, record->device, record->stream, &taken) ||
        !is_open_for(box, layout)) {
        return 0;
    }
    readings_take(box, layout, walk, call->n, OUTPUTS, &taken);
    PUT(&head, "{\"type\":\"return\",\"n\":");
    put_start(&head, call->n, record->t);
    PUT_FIELD(&head, "tid", call->thread->tid);
    put_changed(&head, call->layout, changed);
    put_place(&head, record->device, record->stream);
    PUT_FIELD(&head, "token", taken.token);
    int status = append_whole(box, walk, &head, end);
    readings_start(box, layout, walk, &taken);
    return status < 0 ? -1 : 1;
}

static int return_walked(Call *call, PyObject *result, const Return *record, Walk *walk)
{
    Where where = {call->op, NULL, NULL, NULL};
    uint8_t changed[MOST_TENSORS];
    if (call->layout->labels_size > LONGEST_HEAD - LONGEST_START || !walk_result(walk, result)) {
        return 0;
    }
    int count = find_changed(call, changed); /* before the layout is found: it may run others */
    Layout *layout = count < 0 ? NULL : layout_find(&call->box->results, &where, walk);
    if (layout == NULL) {
        return 0;
    }
    Py_INCREF((PyObject *)layout); /* others may run */
    int done = return_written(call, record, walk, layout, changed);
    Py_DECREF((PyObject *)layout);
    return done;
}

/* Write that a call came back with what looks like a result that is described; 0 where it does not, -1 on an error. */
int return_exact(Call *call, PyObject *result, const Return *record)
{
    Walk *walk = walk_new();
    int done = walk == NULL ? 0 : return_walked(call, result, record, walk);
    if (done == 0) {
        forgive();
    }
    if (walk != NULL) {
        walk_free(walk);
    }
    return done;
}

/* --- keeping */

static PyObject *keep(Layouts *layouts, const Where *where, Walk *walk, int is_walked, unsigned long number,
                      PyObject *found, PyObject *readings, PyObject *fixed)
{
    PyObject *kept = is_walked ? (PyObject *)layout_keep(layouts, where, walk, number, found, readings, fixed) : NULL;
    if (!is_walked) {
        forgive();
        kept = PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    walk_free(walk);
    return kept;
}

/* Keep what the arguments of a call look like: operator, target, site, names of its keywords, how many there are by
 * position, all its values, the number of the layout, what Python has found of the tensors, how the device reads them,
 * and which it does not for their size. Its Layout, or None. */
PyObject *keep_exact_inputs(PyObject *self, PyObject *args)
{
    Where where;
    PyObject *values, *found, *readings, *fixed;
    unsigned long number;
    if (!PyArg_ParseTuple(args, "UUUO!O!kO!SS", &where.op, &where.target, &where.site, &PyTuple_Type, &where.names,
                          &PyTuple_Type, &values, &number, &PyList_Type, &found, &readings, &fixed)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(values) - PyTuple_GET_SIZE(where.names);
    Walk *walk = count < 0 ? NULL : walk_new();
    if (walk == NULL) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there are more keywords than values");
    }
    int is_walked = walk_arguments(walk, ((PyTupleObject *)values)->ob_item, count, where.names);
    return keep(&((Box *)self)->arguments, &where, walk, is_walked, number, found, readings, fixed);
}

/* Keep what a result looks like: operator, result, and the last four likewise. */
PyObject *keep_exact_output(PyObject *self, PyObject *args)
{
    Where where = {NULL, NULL, NULL, NULL};
    PyObject *result, *found, *readings, *fixed;
    unsigned long number;
    if (!PyArg_ParseTuple(args, "UOkO!SS", &where.op, &result, &number, &PyList_Type, &found, &readings, &fixed)) {
        return NULL;
    }
    Walk *walk = walk_new();
    if (walk == NULL) {
        return NULL;
    }
    return keep(&((Box *)self)->results, &where, walk, walk_result(walk, result), number, found, readings, fixed);
}
