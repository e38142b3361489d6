/* What the values of a type are to a walk: asked of kinds.py once a type, and again once its class has changed. */
#include "crossing.h"

#define KINDS 4096 /* a power of two */
#define MOST_KINDS 2048

static Kind *kinds[KINDS];
static size_t used;
static uint64_t serial = FIRST_SERIAL;
static PyObject *told;  /* type -> how its values are told, and the names of their fields */
static PyObject *asked; /* value -> its description as bytes, or None */

/* What a class is by now, which changes with it and with those that it inherits from; 0 where that cannot be told. */
static unsigned int version_of(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030c0000
    if (!PyUnstable_Type_AssignVersionTag(type)) {
        return 0;
    }
#else
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("__class__")) == NULL) {
        PyErr_Clear();
        return 0;
    }
    (void)_PyType_Lookup(type, name);
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
        return 0;
    }
#endif
    return type->tp_version_tag;
}

static unsigned int version_so_far(const PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030e0000
    return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0;
#else
    return type->tp_version_tag;
#endif
}

static int is_current(const Kind *kind, PyTypeObject *type)
{
    return kind->type == type && is_referred_to(kind->watch, (PyObject *)type) == 1 && kind->name == type->tp_name &&
           (!kind->is_of_class || kind->version == version_so_far(type));
}

static void kind_dealloc(PyObject *self)
{
    Kind *kind = (Kind *)self;
    Py_XDECREF(kind->watch);
    Py_XDECREF(kind->names);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject KindType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Kind",
    .tp_basicsize = sizeof(Kind),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = kind_dealloc,
};

static Kind *kind_new(PyTypeObject *type, int how, PyObject *names)
{
    Kind *kind = PyObject_New(Kind, &KindType);
    if (kind == NULL) {
        return NULL;
    }
    kind->type = type;
    kind->name = type->tp_name;
    kind->how = how;
    kind->serial = ++serial;
    kind->names = Py_NewRef(names);
    kind->is_of_class = PyTuple_GET_SIZE(names) > 0;
    kind->watch = PyWeakref_NewRef((PyObject *)type, NULL);
    if (kind->watch == NULL) {
        Py_DECREF(kind);
        return NULL;
    }
    return kind;
}

/* Ask Python; NULL, with or without an error, where that has no answer. */
static Kind *kind_ask(PyTypeObject *type)
{
    unsigned int before = version_of(type);
    PyObject *answer = told == NULL ? NULL : PyObject_CallOneArg(told, (PyObject *)type), *names = NULL;
    int how = NEVER;
    if (answer == NULL || !PyArg_ParseTuple(answer, "iO!", &how, &PyTuple_Type, &names)) {
        Py_XDECREF(answer);
        return NULL;
    }
    if (PyTuple_GET_SIZE(names) > 0 &&
        (before == 0 || before != version_so_far(type) || type->tp_getattro != PyObject_GenericGetAttr)) {
        how = how == OBJECT ? ASKED : NEVER;
    }
    Kind *kind = kind_new(type, how, names);
    Py_DECREF(answer);
    if (kind != NULL) {
        kind->version = before;
    }
    return kind;
}

static Kind **slot_of(PyTypeObject *type)
{
    size_t index = (size_t)((((uint64_t)(uintptr_t)type >> 4) * 0x9E3779B97F4A7C15u) >> 32) & (KINDS - 1);
    while (kinds[index] != NULL && kinds[index]->type != type) {
        index = (index + 1) & (KINDS - 1);
    }
    return &kinds[index];
}

static void kinds_clear(void)
{
    used = 0;
    for (size_t index = 0; index < KINDS; index++) {
        Py_CLEAR(kinds[index]);
    }
}

/* Make room: let go of the kinds of types that are no more; of all if there are too many others. */
static void kinds_thin(void)
{
    static Kind *living[MOST_KINDS];
    size_t count = 0;
    for (size_t index = 0; index < KINDS; index++) {
        if (kinds[index] != NULL && is_current(kinds[index], kinds[index]->type)) {
            living[count++] = (Kind *)Py_NewRef((PyObject *)kinds[index]);
        }
    }
    kinds_clear();
    for (size_t index = 0; index < count; index++) {
        if (count > MOST_KINDS / 2) {
            Py_DECREF((PyObject *)living[index]);
            continue;
        }
        *slot_of(living[index]->type) = living[index];
        used++;
    }
}

/* What the values of a type are, a new reference; NULL, with or without an error, where that cannot be told. */
Kind *kind_of(PyTypeObject *type)
{
    Kind *known = *slot_of(type);
    if (known != NULL && is_current(known, type)) {
        return (Kind *)Py_NewRef((PyObject *)known);
    }
    Kind *kind = kind_ask(type);
    if (kind == NULL) {
        return NULL;
    }
    if (used >= MOST_KINDS) {
        kinds_thin();
    }
    Kind **slot = slot_of(type); /* once more: Python may have let others in */
    used += *slot == NULL;
    Py_XSETREF(*slot, (Kind *)Py_NewRef((PyObject *)kind));
    return kind;
}

/* The description of a value that only Python can give, as bytes; NULL, with or without an error, where it has none. */
PyObject *kind_described(PyObject *value)
{
    PyObject *found = asked == NULL ? NULL : PyObject_CallOneArg(asked, value);
    if (found != NULL && !PyBytes_CheckExact(found)) {
        Py_CLEAR(found);
    }
    return found;
}

/* Take kinds.py's two functions. */
PyObject *kinds_use(PyObject *module, PyObject *args)
{
    PyObject *of_type, *of_value;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &of_type, &of_value)) {
        return NULL;
    }
    Py_INCREF(of_type);
    Py_INCREF(of_value);
    Py_XSETREF(told, of_type);
    Py_XSETREF(asked, of_value);
    kinds_clear();
    Py_RETURN_NONE;
}
