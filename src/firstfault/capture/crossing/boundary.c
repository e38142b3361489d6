/* Boundaries: functions that stay what they are to the program, and whose calls come here first.
 *
 * CPython lets a function be called through code of another's (``PyFunction_SetVectorcall``), so a boundary has no
 * frame of its own where its call looks like one before it. Everything else calls what the function itself says, as
 * the compilers that trace it do. Python 3.11 calls a function from Python code without asking; there it is called
 * here by other code only.
 */
#include "crossing.h"

typedef struct Plan {
    PyObject *function; /* borrowed: the plan is forgotten with it */
    PyObject *watch;    /* what tells when that is */
    PyObject *name, *target, *mutates; /* the last NULL for nothing */
    Py_ssize_t first;   /* of the arguments, the one that is recorded first */
    int func, run;      /* which cells of the function hold what it stands for, and what does the work */
} Plan;

static size_t used;
static PyObject *compiler; /* torch.compiler's own names */
static PyObject *flag;     /* of which this one tells whether torch traces */

static size_t index_of(PyObject *function)
{
    uint64_t hash = ((uint64_t)(uintptr_t)function >> 4) * 0x9E3779B97F4A7C15u;
    size_t index = (size_t)(hash >> 20) & first.most_plans;
    while (first.plans[index] != NULL && first.plans[index]->function != function) {
        index = (index + 1) & first.most_plans;
    }
    return index;
}

static int make_room(void)
{
    Plan **before = first.plans;
    size_t old = before == NULL ? 0 : first.most_plans + 1;
    if (2 * (used + 1) < old) {
        return 0;
    }
    size_t size = old == 0 ? 1024 : 2 * old;
    Plan **larger = PyMem_Calloc(size, sizeof(Plan *));
    if (larger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    first.plans = larger;
    first.most_plans = size - 1;
    for (size_t index = 0; index < old; index++) {
        if (before[index] != NULL) {
            larger[index_of(before[index]->function)] = before[index];
        }
    }
    PyMem_Free(before);
    return 0;
}

static void plan_free(Plan *plan)
{
    Py_XDECREF(plan->watch);
    Py_XDECREF(plan->name);
    Py_XDECREF(plan->target);
    Py_XDECREF(plan->mutates);
    PyMem_Free(plan);
}

/* Take a plan out; those behind it that it was in the way of move up. */
static void forget(Plan *plan)
{
    size_t hole = index_of(plan->function);
    if (first.plans[hole] != plan) {
        return;
    }
    first.plans[hole] = NULL;
    used--;
    for (size_t index = hole;;) {
        index = (index + 1) & first.most_plans;
        Plan *moved = first.plans[index];
        if (moved == NULL) {
            return;
        }
        first.plans[index] = NULL;
        first.plans[index_of(moved->function)] = moved;
    }
}

/* A boundary is no more. */
static PyObject *gone(PyObject *capsule, PyObject *reference)
{
    (void)reference;
    Plan *plan = PyCapsule_GetPointer(capsule, NULL);
    if (plan == NULL) {
        return NULL;
    }
    forget(plan);
    plan_free(plan);
    Py_RETURN_NONE;
}

static PyMethodDef gone_method = {"gone", gone, METH_O, NULL};

/* What a cell of a boundary holds; NULL where the garbage collector has taken it apart. */
static PyObject *in_cell(PyObject *function, int cell)
{
    PyObject *closure = PyFunction_GET_CLOSURE(function);
    return closure == NULL ? NULL : PyCell_GET(PyTuple_GET_ITEM(closure, cell));
}

static int is_traced(void)
{
    PyObject *tracing = PyDict_GetItemWithError(compiler, flag);
    PyErr_Clear();
    return tracing != Py_False;
}

#if PY_VERSION_HEX >= 0x030c0000
static int watcher = -1;

/* torch.compiler's names change: hardly ever, where each call would have to look. */
static int compiler_changes(PyDict_WatchEvent event, PyObject *names, PyObject *name, PyObject *value)
{
    (void)names;
    if (name == NULL || event == PyDict_EVENT_CLONED) {
        first.is_traced = 1;
    }
    else if (name == flag || PyUnicode_Compare(name, flag) == 0) {
        first.is_traced = value != Py_False;
    }
    return 0;
}

static int watch_compiler(void)
{
    if (watcher < 0 && (watcher = PyDict_AddWatcher(compiler_changes)) < 0) {
        return -1;
    }
    first.is_traced = is_traced();
    return PyDict_Watch(watcher, compiler);
}
#else
static int watch_compiler(void)
{
    first.is_traced = 2;
    return 0;
}
#endif

/* Whether a compiler looks on, or torch traces: then the function itself must be what is called. */
static int is_watched(void)
{
    return (first.is_traced != 0 && (first.is_traced == 1 || is_traced())) ||
           _PyInterpreterState_GetEvalFrameFunc(first.interpreter) != _PyEval_EvalFrameDefault;
}

static PyObject *call_recorded(const Plan *plan, Call *call, PyObject *run, PyObject *const *args, size_t nargsf,
                               PyObject *names)
{
    if (plan->mutates != NULL) {
        call->mutates = Py_NewRef(plan->mutates);
    }
    Py_INCREF(run);
    PyObject *result = PyObject_Vectorcall(run, args, nargsf, names);
    Py_DECREF(run);
    if (result != NULL) {
        if (call_returned(call, result) < 0) {
            Py_CLEAR(result);
        }
        return result;
    }
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *error = PyErr_GetRaisedException();
    if (call_raised(call, error) < 0) {
        Py_XDECREF(error);
        return NULL;
    }
    PyErr_SetRaisedException(error);
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (call_raised(call, error) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return NULL;
    }
    PyErr_Restore(type, error, trace);
#endif
    return NULL;
}

static PyObject *cross_into(Box *box, const Plan *plan, PyObject *function, PyObject *const *args, size_t nargsf,
                            PyObject *names)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    Thread *thread = thread_of(box);
    PyObject *func = in_cell(function, plan->func), *run = in_cell(function, plan->run);
    if (thread == NULL || func == NULL || run == NULL) {
        return PyErr_Occurred() ? NULL : first.plain(function, args, nargsf, names);
    }
    if (thread->busy) {
        Py_INCREF(func);
        PyObject *result = PyObject_Vectorcall(func, args, nargsf, names);
        Py_DECREF(func);
        return result;
    }
    Given given = {plan->name, plan->target, args + plan->first, count - plan->first, names, NULL, NULL, 0};
    Call *call = NULL;
    Py_INCREF(run);
    int begun = box_begin(box, thread, &given, PyEval_GetFrame(), &call);
    PyObject *result = begun == 0   ? first.plain(function, args, nargsf, names)
                       : begun == 1 ? call_recorded(plan, call, run, args, nargsf, names)
                                    : NULL;
    Py_DECREF(run);
    Py_XDECREF((PyObject *)call);
    return result;
}

static PyObject *cross(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Box *box = first.active;
    Plan *plan = box == NULL ? NULL : first.plans[index_of(function)];
    if (plan == NULL || PyVectorcall_NARGS(nargsf) < plan->first || is_watched()) {
        return first.plain(function, args, nargsf, names);
    }
    Py_INCREF(box); /* to find the thread may run Python, which may let go of it */
    PyObject *result = cross_into(box, plan, function, args, nargsf, names);
    Py_DECREF(box);
    return result;
}

/* Where a function holds a variable of the one around it; -1, with an error, where it does not. */
static int cell_of(PyObject *function, const char *name)
{
    PyObject *code = PyFunction_GET_CODE(function);
    PyObject *names = PyObject_GetAttrString(code, "co_freevars");
    int found = -1;
    for (Py_ssize_t index = 0; names != NULL && index < PyTuple_GET_SIZE(names); index++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, index), name) == 0) {
            found = (int)index;
        }
    }
    Py_XDECREF(names);
    if (found < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "the boundary has no %s", name);
    }
    return found;
}

static int watch(Plan *plan)
{
    PyObject *capsule = PyCapsule_New(plan, NULL, NULL);
    PyObject *callback = capsule == NULL ? NULL : PyCFunction_New(&gone_method, capsule);
    plan->watch = callback == NULL ? NULL : PyWeakref_NewRef(plan->function, callback);
    Py_XDECREF(capsule);
    Py_XDECREF(callback);
    return plan->watch == NULL ? -1 : 0;
}

static int plan_add(PyObject *function, Plan *plan)
{
    plan->func = cell_of(function, "func");
    plan->run = plan->func < 0 ? -1 : cell_of(function, "run");
    if (plan->run < 0 || make_room() < 0 || first.plans[index_of(function)] != NULL || watch(plan) < 0) {
        return -1;
    }
    first.plans[index_of(function)] = plan;
    used++;
    return 0;
}

/* Have the calls of a boundary come here first: the function, its name, target, which argument comes first, and what
 * it is declared to change. */
PyObject *boundary_attach(PyObject *module, PyObject *args)
{
    PyObject *function, *name, *target, *mutates;
    Py_ssize_t left_out;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!UUnO", &PyFunction_Type, &function, &name, &target, &left_out, &mutates)) {
        return NULL;
    }
    int changes = PyObject_IsTrue(mutates);
    Plan *plan = changes < 0 ? NULL : PyMem_Calloc(1, sizeof(Plan));
    if (plan == NULL) {
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    plan->function = function;
    plan->name = Py_NewRef(name);
    plan->target = Py_NewRef(target);
    plan->mutates = changes ? Py_NewRef(mutates) : NULL;
    plan->first = left_out;
    if (plan_add(function, plan) < 0) {
        plan_free(plan);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "it is attached already");
    }
    first.plain = ((PyFunctionObject *)function)->vectorcall;
#if PY_VERSION_HEX >= 0x030c0000
    PyFunction_SetVectorcall((PyFunctionObject *)function, cross);
#else
    ((PyFunctionObject *)function)->vectorcall = cross;
#endif
    Py_RETURN_NONE;
}

/* Take torch.compiler's own names, of which one tells whether torch traces. */
PyObject *boundary_use(PyObject *module, PyObject *names)
{
    (void)module;
    if (!PyDict_Check(names)) {
        PyErr_SetString(PyExc_TypeError, "the names of torch.compiler are a dict");
        return NULL;
    }
    Py_INCREF(names);
    Py_XSETREF(compiler, names);
    return watch_compiler() < 0 ? NULL : Py_NewRef(Py_None);
}

int boundary_start(void)
{
    flag = PyUnicode_InternFromString("_is_compiling_flag");
    return flag == NULL ? -1 : 0;
}
