/* What one side of a call looks like in a ring: its number, and the last segment that describes it, with which shapes. */
#include "crossing.h"
#include <structmember.h>

static int known_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    if (kwargs != NULL) {
        PyErr_SetString(PyExc_TypeError, "Known takes its number alone");
        return -1;
    }
    return PyArg_ParseTuple(args, "k", &((Known *)self)->number) ? 0 : -1;
}

static void known_dealloc(PyObject *self)
{
    PyMem_Free(((Known *)self)->shape);
    Py_TYPE(self)->tp_free(self);
}

/* Take the shapes of tensors for those that are described, in segment 0, so in none, where they cannot be told here. */
static PyObject *describe(PyObject *self, PyObject *args)
{
    Known *known = (Known *)self;
    PyObject *tensors;
    unsigned long segment;
    if (!PyArg_ParseTuple(args, "O!k", &PyTuple_Type, &tensors, &segment)) {
        return NULL;
    }
    known->segment = 0;
    Py_ssize_t count = PyTuple_GET_SIZE(tensors);
    Shape *shape = PyMem_Realloc(known->shape, (size_t)(count + 1) * sizeof(Shape));
    if (shape == NULL) {
        return PyErr_NoMemory();
    }
    known->shape = shape;
    uint64_t kind[LONGEST_KIND];
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *tensor = PyTuple_GET_ITEM(tensors, index);
        if (!is_tensor(tensor) || tensor_kind(tensor, kind) == 0) {
            Py_RETURN_NONE;
        }
        shape[index] = tensor_shape(tensor);
    }
    known->tensors = (int)count;
    known->segment = segment;
    Py_RETURN_NONE;
}

static PyMethodDef known_methods[] = {
    {"describe", describe, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef known_members[] = {
    {"number", T_ULONG, offsetof(Known, number), READONLY, NULL},
    {"segment", T_ULONG, offsetof(Known, segment), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject KnownType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Known",
    .tp_basicsize = sizeof(Known),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = known_init,
    .tp_dealloc = known_dealloc,
    .tp_methods = known_methods,
    .tp_members = known_members,
};
