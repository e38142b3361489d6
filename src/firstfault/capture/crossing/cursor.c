/* Where the next record goes, in a ring or a file, and the two kinds of number that calls have. */
#include "crossing.h"
#include <string.h>
#include <structmember.h>
#include <unistd.h>

/* Copy a record to the end of a segment, if that is the one that is written to and has room; whether that was so. */
int cursor_append(Cursor *cursor, const char *data, size_t length, unsigned long segment)
{
    if (cursor->at == NULL || segment != cursor->segment || length > cursor->size - cursor->end) {
        return 0;
    }
    memcpy(cursor->at + cursor->end, data, length);
    cursor->end += length;
    return 1;
}

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "append takes bytes and the number of a segment");
        return NULL;
    }
    unsigned long segment = PyLong_AsUnsignedLong(args[1]);
    if (segment == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(
        cursor_append((Cursor *)self, PyBytes_AS_STRING(args[0]), (size_t)PyBytes_GET_SIZE(args[0]), segment));
}

static PyObject *open_at(PyObject *self, PyObject *args)
{
    Cursor *cursor = (Cursor *)self;
    unsigned long long address, size, end;
    unsigned long segment;
    PyObject *mapping;
    if (!PyArg_ParseTuple(args, "OKk", &mapping, &end, &segment)) {
        return NULL;
    }
    PyObject *where = PyObject_GetAttrString(mapping, "address");
    PyObject *length = where == NULL ? NULL : PyObject_GetAttrString(mapping, "size");
    address = where == NULL ? 0 : PyLong_AsUnsignedLongLong(where);
    size = length == NULL ? 0 : PyLong_AsUnsignedLongLong(length);
    Py_XDECREF(where);
    Py_XDECREF(length);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (end > size) {
        PyErr_SetString(PyExc_ValueError, "the end lies beyond the segment");
        return NULL;
    }
    cursor->at = (char *)(uintptr_t)address;
    cursor->size = (size_t)size;
    cursor->end = (size_t)end;
    cursor->segment = segment;
    Py_RETURN_NONE;
}

static PyObject *close_there(PyObject *self, PyObject *unused)
{
    (void)unused;
    Cursor *cursor = (Cursor *)self;
    cursor->at = NULL;
    return PyLong_FromSize_t(cursor->end);
}

static PyMethodDef cursor_methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, NULL},
    {"open", open_at, METH_VARARGS, NULL},
    {"close", close_there, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef cursor_members[] = {
    {"end", T_PYSSIZET, offsetof(Cursor, end), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject CursorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Cursor",
    .tp_basicsize = sizeof(Cursor),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = cursor_methods,
    .tp_members = cursor_members,
};

/* Append a record with one write; how much of it the system took, which Python sees to where that is not all. */
long long appender_append(Appender *appender, const char *data, size_t length)
{
    if (appender->fd < 0 || appender->size + (long long)length > appender->limit) {
        return 0;
    }
    long long written;
    int fd = appender->fd;
    Py_BEGIN_ALLOW_THREADS
    written = write(fd, data, length);
    Py_END_ALLOW_THREADS
    if (written <= 0) {
        return 0;
    }
    appender->size += written;
    return written;
}

static PyObject *open_file(PyObject *self, PyObject *args)
{
    Appender *appender = (Appender *)self;
    if (!PyArg_ParseTuple(args, "iLLk", &appender->fd, &appender->size, &appender->limit, &appender->stretch)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *close_file(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((Appender *)self)->fd = -1;
    Py_RETURN_NONE;
}

static PyObject *appender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    Appender *appender = (Appender *)type->tp_alloc(type, 0);
    if (appender != NULL) {
        appender->fd = -1;
    }
    return (PyObject *)appender;
}

static PyMethodDef appender_methods[] = {
    {"open", open_file, METH_VARARGS, NULL},
    {"close", close_file, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef appender_members[] = {
    {"size", T_LONGLONG, offsetof(Appender, size), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject AppenderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Appender",
    .tp_basicsize = sizeof(Appender),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = appender_new,
    .tp_methods = appender_methods,
    .tp_members = appender_members,
};

static PyObject *next_number(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(++((Counter *)self)->last);
}

static PyMethodDef counter_methods[] = {
    {"next", next_number, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef counter_members[] = {
    {"last", T_ULONGLONG, offsetof(Counter, last), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject CounterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Counter",
    .tp_basicsize = sizeof(Counter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = counter_methods,
    .tp_members = counter_members,
};
