/* firstfault.capture._crossing: which recorder's calls come here, and what begins one for Python. */
#include "crossing.h"

First first __attribute__((aligned(64)));
static PyObject *slow_begin; /* recorder.py's way to begin a call that is not for here */

/* The number of a graph among the keywords of ``begin``; -1 where there are others, or it is none. */
static long long graph_of(PyObject *const *values, PyObject *names)
{
    if (names == NULL) {
        return 0;
    }
    if (PyTuple_GET_SIZE(names) != 1 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "graph") != 0) {
        return -1;
    }
    long long graph = PyLong_AsLongLong(values[0]);
    PyErr_Clear();
    return graph;
}

/* The values of a call by position and by keyword, those in ``values``; its keywords' names, or NULL. */
static PyObject *gather(PyObject *args, PyObject *kwargs, PyObject **values)
{
    Py_ssize_t count = PyTuple_GET_SIZE(args), index = count, at = 0;
    for (Py_ssize_t position = 0; position < count; position++) {
        values[position] = PyTuple_GET_ITEM(args, position);
    }
    PyObject *names = PyTuple_New(PyDict_GET_SIZE(kwargs));
    PyObject *name, *value;
    while (names != NULL && PyDict_Next(kwargs, &at, &name, &value)) {
        PyTuple_SET_ITEM(names, index - count, Py_NewRef(name));
        values[index++] = value;
    }
    return names;
}

static int begin_here(PyObject *const *args, PyObject *names, Call **call)
{
    Box *box = first.active;
    long long graph = graph_of(args + 4, names);
    Thread *thread = box == NULL || graph < 0 ? NULL : thread_of(box);
    if (thread == NULL || thread->busy || !PyTuple_CheckExact(args[2]) || !PyDict_CheckExact(args[3]) ||
        PyTuple_GET_SIZE(args[2]) + PyDict_GET_SIZE(args[3]) > MOST_VALUES) {
        return 0;
    }
    PyObject *values[MOST_VALUES], *keywords = NULL;
    PyObject *const *given_values = ((PyTupleObject *)args[2])->ob_item;
    if (PyDict_GET_SIZE(args[3]) > 0) {
        keywords = gather(args[2], args[3], values);
        if (keywords == NULL) {
            PyErr_Clear();
            return 0;
        }
        given_values = values;
    }
    Given given = {args[0], args[1], given_values, PyTuple_GET_SIZE(args[2]), keywords, (unsigned long long)graph};
    PyFrameObject *frame = PyEval_GetFrame(), *caller = frame == NULL ? NULL : PyFrame_GetBack(frame);
    Py_INCREF(box);
    int begun = box_begin(box, thread, &given, caller, call);
    Py_DECREF(box);
    Py_XDECREF(caller);
    Py_XDECREF(keywords);
    return begun;
}

/* Whether a call is none of a graph's replay or a collective; what was called is told for dumps alone, which C never
 * makes. */
static int is_plain(PyObject *const *args, Py_ssize_t count)
{
    if (count == 4) {
        return 1;
    }
    return count == 7 && PyLong_CheckExact(args[4]) && PyLong_AsLong(args[4]) == 0 && args[5] == Py_None;
}

/* Begin a call as recorder.py's own does, here where it can be; called by the boundary itself. */
static PyObject *begin(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    (void)module;
    Call *call = NULL;
    int begun = is_plain(args, count) ? begin_here(args, names, &call) : 0;
    if (begun != 0) {
        return (PyObject *)call;
    }
    return PyObject_Vectorcall(slow_begin, args, (size_t)count, names);
}

/* Take recorder.py's way to begin a call. */
static PyObject *use_begin(PyObject *module, PyObject *function)
{
    (void)module;
    Py_INCREF(function);
    Py_XSETREF(slow_begin, function);
    Py_RETURN_NONE;
}

/* Have the calls of a box's recorder come here; those of none for None. */
static PyObject *activate(PyObject *module, PyObject *box)
{
    (void)module;
    if (box != Py_None && !Py_IS_TYPE(box, &BoxType)) {
        PyErr_SetString(PyExc_TypeError, "only a Box can be activated");
        return NULL;
    }
    Box *before = first.active;
    first.active = box == Py_None || ((Box *)box)->closed ? NULL : (Box *)Py_NewRef(box);
    Py_XDECREF((PyObject *)before);
    Py_RETURN_NONE;
}

/* Forget what calls look like: each has to be found out by Python once more. */
static PyObject *forget(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    if (first.active != NULL) {
        Box *box = (Box *)Py_NewRef((PyObject *)first.active);
        looks_clear(&box->inputs);
        looks_clear(&box->outputs);
        Py_DECREF(box);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)(void (*)(void))begin, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"attach", boundary_attach, METH_VARARGS, NULL},
    {"activate", activate, METH_O, NULL},
    {"forget", forget, METH_NOARGS, NULL},
    {"use_begin", use_begin, METH_O, NULL},
    {"use_sites", sites_use, METH_O, NULL},
    {"use_compiler", boundary_use, METH_O, NULL},
    {"use_torch", (PyCFunction)(void (*)(void))torch_use, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "firstfault.capture._crossing", .m_size = -1, .m_methods = methods};

static int add_types(PyObject *module)
{
    PyTypeObject *types[] = {&CursorType, &AppenderType, &CounterType, &KnownType, &SlotType, &ThreadType, &BoxType, &CallType};
    for (size_t index = 0; index < sizeof types / sizeof *types; index++) {
        if (PyModule_AddType(module, types[index]) < 0) {
            return -1;
        }
    }
    return 0;
}

PyMODINIT_FUNC PyInit__crossing(void)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "its state is that of one interpreter");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    first.interpreter = PyInterpreterState_Get();
    if (module == NULL || PyModule_AddIntMacro(module, INTERFACE) < 0 || boundary_start() < 0 || add_types(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
