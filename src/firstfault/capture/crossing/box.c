/* The state of a recorder whose calls are written here: Python's way to it. */
#include "crossing.h"
#include <structmember.h>

static uint64_t serial;

static PyObject *box_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "slow", "threads", "counter", "cuda", "cursor", "appender", "tells_all", NULL};
    PyObject *recorder = NULL, *slow = NULL, *threads = NULL, *counter = NULL, *cuda = NULL, *cursor = NULL, *appender = NULL;
    int tells_all = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO!O!O!O!p", names, &recorder, &slow, &threads, &CounterType,
                                     &counter, &PyDict_Type, &cuda, &CursorType, &cursor, &AppenderType, &appender,
                                     &tells_all)) {
        return NULL;
    }
    if (recorder == NULL || slow == NULL || threads == NULL || counter == NULL || cuda == NULL ||
        (cursor == NULL) == (appender == NULL)) {
        PyErr_SetString(PyExc_TypeError, "a Box needs all of its parts, and a ring or a file to write to");
        return NULL;
    }
    Box *box = (Box *)type->tp_alloc(type, 0);
    if (box == NULL) {
        return NULL;
    }
    box->recorder = Py_NewRef(recorder);
    box->slow = Py_NewRef(slow);
    box->threads = Py_NewRef(threads);
    box->cursor = (Cursor *)Py_XNewRef(cursor);
    box->appender = (Appender *)Py_XNewRef(appender);
    box->counter = (Counter *)Py_NewRef(counter);
    box->cuda = Py_NewRef(cuda);
    box->serial = ++serial;
    box->tells_all = (char)(tells_all && cursor == NULL);
    if (looks_start(&box->inputs) < 0 || looks_start(&box->outputs) < 0 || layouts_start(&box->arguments) < 0 ||
        layouts_start(&box->results) < 0) {
        Py_DECREF(box);
        return NULL;
    }
    return (PyObject *)box;
}

static int box_traverse(PyObject *self, visitproc visit, void *arg)
{
    Box *box = (Box *)self;
    Py_VISIT(box->recorder);
    Py_VISIT(box->slow);
    Py_VISIT(box->threads);
    Py_VISIT(box->markers);
    return 0;
}

static void forget_streams(Box *box)
{
    unsigned int used = box->used;
    box->used = 0;
    for (unsigned int index = 0; index < used; index++) {
        Py_CLEAR(box->streams[index].slot);
    }
}

static int box_clear(PyObject *self)
{
    Box *box = (Box *)self;
    box->closed = 1;
    Py_CLEAR(box->recorder);
    Py_CLEAR(box->slow);
    Py_CLEAR(box->threads);
    Py_CLEAR(box->markers);
    return 0;
}

static void box_dealloc(PyObject *self)
{
    Box *box = (Box *)self;
    PyObject_GC_UnTrack(self);
    box_clear(self);
    forget_streams(box);
    looks_clear(&box->inputs);
    looks_clear(&box->outputs);
    layouts_end(&box->arguments);
    layouts_end(&box->results);
    PyMem_Free(box->inputs.forms);
    PyMem_Free(box->inputs.looks);
    PyMem_Free(box->outputs.forms);
    PyMem_Free(box->outputs.looks);
    Py_XDECREF((PyObject *)box->cursor);
    Py_XDECREF((PyObject *)box->appender);
    Py_XDECREF((PyObject *)box->counter);
    Py_XDECREF(box->capturing);
    Py_XDECREF(box->device);
    Py_XDECREF(box->stream);
    Py_XDECREF(box->cuda);
    Py_XDECREF(box->mutates);
    Py_XDECREF(box->mutated);
    Py_XDECREF((PyObject *)box->reader.entries);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *close_box(PyObject *self, PyObject *unused)
{
    (void)unused;
    Box *box = (Box *)self;
    box->closed = 1;
    if (first.active == box) {
        Py_CLEAR(first.active); /* who called this has another reference */
    }
    looks_clear(&box->inputs);
    looks_clear(&box->outputs);
    layouts_clear(&box->arguments);
    layouts_clear(&box->results);
    Py_RETURN_NONE;
}

/* Without markers from now on; or with those, and what tells whether the stream is captured, which device, and which
 * stream: in Python, and the addresses of the runtime's own, 0 where there is none. */
static PyObject *use_markers(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"markers", "capturing", "device", "stream", "runtime", "in_graphs", NULL};
    PyObject *markers = NULL, *capturing = NULL, *device = NULL, *stream = NULL;
    unsigned long long runtime[3] = {0, 0, 0};
    int in_graphs = 0;
    Box *box = (Box *)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO(KKK)p", names, &markers, &capturing, &device, &stream,
                                     &runtime[0], &runtime[1], &runtime[2], &in_graphs)) {
        return NULL;
    }
    if (markers != NULL && (capturing == NULL || device == NULL || stream == NULL)) {
        PyErr_SetString(PyExc_TypeError, "markers need what tells where they go");
        return NULL;
    }
    forget_streams(box);
    Py_XINCREF(capturing);
    Py_XINCREF(device);
    Py_XINCREF(stream);
    Py_XINCREF(markers);
    Py_XSETREF(box->capturing, capturing);
    Py_XSETREF(box->device, device);
    Py_XSETREF(box->stream, stream);
    Py_XSETREF(box->markers, markers);
    box->in_graphs = (char)in_graphs;
    int is_whole = runtime[0] != 0 && runtime[1] != 0 && runtime[2] != 0;
    box->is_capturing = (IsCapturing)(uintptr_t)(is_whole ? runtime[0] : 0);
    box->get_device = (GetDevice)(uintptr_t)(is_whole ? runtime[1] : 0);
    box->get_stream = (GetStream)(uintptr_t)(is_whole ? runtime[2] : 0);
    Py_CLEAR(box->cuda);
    Py_RETURN_NONE;
}

static PyObject *keep(Looks *looks, Where *where, PyObject *const *values, Py_ssize_t count, PyObject *compared,
                      PyObject *known)
{
    Flat flat = {.values = 0, .types = 0};
    int status = 0;
    if (flatten(&flat, values, count, MOST_DEEP)) {
        flat_hold(&flat);
        looks_hold(looks);
        if (look_find(looks, where, &flat) == NULL) {
            status = look_keep(looks, where, &flat, compared, (Known *)known);
        }
        looks_drop(looks);
        flat_drop(&flat);
    }
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* Keep what a call looks like: operator, target, site, names of its keywords, all its values, what the others are
 * compared with, and its Known. */
static PyObject *keep_inputs(PyObject *self, PyObject *args)
{
    Where where;
    PyObject *values, *compared, *known;
    if (!PyArg_ParseTuple(args, "UUUO!O!O!O!", &where.op, &where.target, &where.site, &PyTuple_Type, &where.names,
                          &PyTuple_Type, &values, &PyList_Type, &compared, &KnownType, &known)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(where.names) == 0) {
        where.names = NULL;
    }
    return keep(&((Box *)self)->inputs, &where, ((PyTupleObject *)values)->ob_item, PyTuple_GET_SIZE(values), compared,
                known);
}

static PyObject *keep_output(PyObject *self, PyObject *args)
{
    Where where = {NULL, NULL, NULL, NULL};
    PyObject *result, *compared, *known;
    if (!PyArg_ParseTuple(args, "UOO!O!", &where.op, &result, &PyList_Type, &compared, &KnownType, &known)) {
        return NULL;
    }
    return keep(&((Box *)self)->outputs, &where, &result, 1, compared, known);
}

static PyMemberDef box_members[] = {
    {"here", T_ULONGLONG, offsetof(Box, here), READONLY, NULL},
    {"left", T_ULONGLONG, offsetof(Box, left), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef box_methods[] = {
    {"keep_inputs", keep_inputs, METH_VARARGS, NULL},
    {"keep_output", keep_output, METH_VARARGS, NULL},
    {"keep_exact_inputs", keep_exact_inputs, METH_VARARGS, NULL},
    {"keep_exact_output", keep_exact_output, METH_VARARGS, NULL},
    {"use_markers", (PyCFunction)(void (*)(void))use_markers, METH_VARARGS | METH_KEYWORDS, NULL},
    {"use_reader", (PyCFunction)(void (*)(void))use_reader, METH_VARARGS | METH_KEYWORDS, NULL},
    {"forget_readers", forget_readers, METH_NOARGS, NULL},
    {"stop_reading", stop_reading, METH_NOARGS, NULL},
    {"close", close_box, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject BoxType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Box",
    .tp_basicsize = sizeof(Box),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = box_new,
    .tp_dealloc = box_dealloc,
    .tp_traverse = box_traverse,
    .tp_clear = box_clear,
    .tp_methods = box_methods,
    .tp_members = box_members,
};
