/* firstfault.capture._crossing: which recorder's calls come here, and what begins one for Python. */
#include "crossing.h"

First first __attribute__((aligned(64)));
static PyObject *slow_begin; /* recorder.py's way to begin a call that is not for here */

static int is_graph_alone(PyObject *names)
{
    return PyTuple_GET_SIZE(names) == 1 &&
           PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "graph") == 0;
}

/* The number of a graph that ``begin`` is given; -1 where it is given what is not for here, as a collective is. */
static long long graph_of(PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    int is_named = names != NULL && PyTuple_GET_SIZE(names) > 0;
    if (count < 4 || count > 7 || (count > 5 && args[5] != Py_None) ||
        (is_named && (count > 4 || !is_graph_alone(names)))) {
        return -1;
    }
    if (count == 4 && !is_named) {
        return 0;
    }
    long long graph = PyLong_CheckExact(args[4]) ? PyLong_AsLongLong(args[4]) : -1;
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

static int begin_in(Box *box, PyObject *const *args, unsigned long long graph, Call **call)
{
    Thread *thread = thread_of(box);
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
    Given given = {args[0], args[1], given_values, PyTuple_GET_SIZE(args[2]), keywords, args[2], args[3], graph};
    PyFrameObject *frame = PyEval_GetFrame(), *caller = frame == NULL ? NULL : PyFrame_GetBack(frame);
    int begun = box_begin(box, thread, &given, caller, call);
    Py_XDECREF(caller);
    Py_XDECREF(keywords);
    return begun;
}

static int begin_here(PyObject *const *args, Py_ssize_t count, PyObject *names, Call **call)
{
    Box *box = first.active;
    long long graph = graph_of(args, count, names);
    if (box == NULL || graph < 0) {
        return 0;
    }
    Py_INCREF(box); /* to find the thread may run Python, which may let go of it */
    int begun = begin_in(box, args, (unsigned long long)graph, call);
    Py_DECREF(box);
    return begun;
}

/* Begin a call as recorder.py's own does, here where it can be; called by the boundary itself. */
static PyObject *begin(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    (void)module;
    Call *call = NULL;
    if (begin_here(args, count, names, &call) != 0 || PyErr_Occurred()) {
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
        layouts_clear(&box->arguments);
        layouts_clear(&box->results);
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
    {"use_kinds", kinds_use, METH_VARARGS, NULL},
    {"use_compiler", boundary_use, METH_O, NULL},
    {"use_torch", (PyCFunction)(void (*)(void))torch_use, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    PyTypeObject *types[] = {&CursorType, &AppenderType, &CounterType, &KnownType,  &KindType,   &SlotType,
                             &ThreadType, &BoxType,      &LayoutType,  &CallType,   &EntriesType};
    for (size_t index = 0; index < sizeof types / sizeof *types; index++) {
        if (PyModule_AddType(module, types[index]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* In an interpreter other than the first it is refused: its state is that of one. */
static int fill(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "its state is that of one interpreter");
        return -1;
    }
    first.interpreter = PyInterpreterState_Get();
    return PyModule_AddIntMacro(module, INTERFACE) < 0 || boundary_start() < 0 || add_types(module) < 0 ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)fill},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

/* In phases: a module of one phase would be copied into the next interpreter without a word from here. */
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "firstfault.capture._crossing", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__crossing(void)
{
    return PyModuleDef_Init(&definition);
}
