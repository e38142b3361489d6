/* One stream's place in the marker page: what the host enqueues there, and the device's own write of it. */
#include "crossing.h"

/* Enqueue a marker. Two threads may share a stream: what was enqueued last must be what is written last.
 *
 * The driver may wait for room in the stream's queue, so other threads run meanwhile: what it waits for may be theirs.
 */
void slot_mark(Slot *slot, uint64_t stream, uint64_t marker)
{
    if (!PyThread_acquire_lock(slot->lock, NOWAIT_LOCK)) {
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(slot->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    *(volatile uint64_t *)slot->enqueued = marker;
    Py_BEGIN_ALLOW_THREADS
    slot->write((void *)(uintptr_t)stream, slot->address, (uint32_t)marker, 0);
    PyThread_release_lock(slot->lock);
    Py_END_ALLOW_THREADS
}

static PyObject *mark(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "mark takes a stream and a marker");
        return NULL;
    }
    unsigned long long stream = PyLong_AsUnsignedLongLong(args[0]);
    unsigned long long marker = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    slot_mark((Slot *)self, stream, marker);
    Py_RETURN_NONE;
}

static PyObject *slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long enqueued, address, write;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "KKK", &enqueued, &address, &write)) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Slot takes three addresses");
    }
    Slot *slot = (Slot *)type->tp_alloc(type, 0);
    if (slot == NULL) {
        return NULL;
    }
    slot->enqueued = (uint64_t *)(uintptr_t)enqueued;
    slot->address = address;
    slot->write = (StreamWrite)(uintptr_t)write;
    slot->lock = PyThread_allocate_lock();
    if (slot->lock == NULL) {
        Py_DECREF(slot);
        return PyErr_NoMemory();
    }
    return (PyObject *)slot;
}

static void slot_dealloc(PyObject *self)
{
    if (((Slot *)self)->lock != NULL) {
        PyThread_free_lock(((Slot *)self)->lock);
    }
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef slot_methods[] = {
    {"mark", (PyCFunction)(void (*)(void))mark, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Slot",
    .tp_basicsize = sizeof(Slot),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = slot_new,
    .tp_dealloc = slot_dealloc,
    .tp_methods = slot_methods,
};
