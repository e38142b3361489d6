/* What a tensor looks like, read where torch keeps it; tensor_words.py has found out where that is. */
#include "crossing.h"
#include <string.h>

static PyGetSetDef *requires_grad;
static PyObject *modes;
static uint64_t masks[MOST_KEYS]; /* of what is compared in the words from first to last */

int is_tensor(PyObject *value)
{
    return Py_TYPE(value) == first.tensor || Py_TYPE(value) == first.parameter;
}

static const uint64_t *words_of(PyObject *tensor)
{
    return (const uint64_t *)(uintptr_t)((const uint64_t *)tensor)[first.object];
}

/* Have the words of tensors brought into the cache, all at once. */
void tensors_fetch(PyObject *const *values, int count)
{
    for (int index = 0; index < count; index++) {
        if (is_tensor(values[index])) {
            const uint64_t *read = words_of(values[index]);
            __builtin_prefetch(read + first.storage);
            __builtin_prefetch(read + first.sizes);
            __builtin_prefetch(read + first.strides);
            __builtin_prefetch(read + first.last);
        }
    }
}

/* Whether a tensor keeps a gradient; -1 where that must not be asked, as a mode of the program would see it. */
static int keeps_gradient(PyObject *tensor, const uint64_t *read)
{
    if (read[first.autograd] == 0) {
        return 0;
    }
    PyObject *mode = PyObject_CallNoArgs(modes);
    PyObject *found = mode == Py_False ? requires_grad->get(tensor, requires_grad->closure) : NULL;
    int keeps = found == Py_True ? 1 : found == Py_False ? 0 : -1;
    Py_XDECREF(mode);
    Py_XDECREF(found);
    PyErr_Clear();
    return keeps;
}

static uint64_t last_of_kind(const uint64_t *read, int keeps)
{
    uint64_t is_empty = 0;
    for (uint64_t index = 0; index < read[first.sizes]; index++) {
        is_empty |= read[first.sizes + 1 + index] == 0;
    }
    return read[first.sizes] << 2 | is_empty << 1 | (uint64_t)keeps;
}

/* How many words tell what a tensor looks like but for its sizes and strides, and those; 0 where it has too many
 * dimensions or cannot be asked. */
int tensor_kind(PyObject *tensor, uint64_t *kind)
{
    const uint64_t *read = words_of(tensor);
    int keeps = read[first.sizes] <= MOST_DIMENSIONS ? keeps_gradient(tensor, read) : -1;
    if (keeps < 0) {
        return 0;
    }
    int count = 0;
    for (int at = first.first; at <= first.last; at++) {
        kind[count] = read[at] & masks[count];
        count++;
    }
    kind[count++] = last_of_kind(read, keeps);
    return count;
}

/* How many words of a kind a tensor matches: all, or 0. */
int tensor_is_of(PyObject *tensor, const uint64_t *kind)
{
    const uint64_t *read = words_of(tensor);
    int count = 0;
    for (int at = first.first; at <= first.last; at++) {
        if (kind[count] != (read[at] & masks[count])) { /* first: another kind of tensor may keep the rest elsewhere */
            return 0;
        }
        count++;
    }
    if (read[first.sizes] != kind[count] >> 2) {
        return 0;
    }
    int keeps = keeps_gradient(tensor, read);
    return keeps >= 0 && kind[count] == last_of_kind(read, keeps) ? count + 1 : 0;
}

/* The sizes and strides of a tensor of which the kind could be told. */
Shape tensor_shape(PyObject *tensor)
{
    const uint64_t *read = words_of(tensor);
    Shape shape = {.dimensions = read[first.sizes]};
    memcpy(shape.size, read + first.sizes + 1, shape.dimensions * sizeof *shape.size);
    memcpy(shape.stride, read + first.strides, shape.dimensions * sizeof *shape.stride);
    return shape;
}

/* Whether such a tensor has those sizes and strides. */
int tensor_is_shaped(PyObject *tensor, const Shape *shape)
{
    const uint64_t *read = words_of(tensor);
    size_t bytes = shape->dimensions * sizeof *shape->size;
    return memcmp(shape->size, read + first.sizes + 1, bytes) == 0 &&
           memcmp(shape->stride, read + first.strides, bytes) == 0;
}

/* Where a tensor begins of which the kind is known; 0 for one without memory. */
uint64_t tensor_address(PyObject *tensor, uint64_t itemsize)
{
    const uint64_t *read = words_of(tensor);
    const uint64_t *storage = (const uint64_t *)(uintptr_t)read[first.storage];
    uint64_t start = storage == NULL ? 0 : storage[first.data];
    return start == 0 ? 0 : start + read[first.offset] * itemsize;
}

/* Where a tensor lies, and how often it has been written to, which torch counts for all but inference tensors. */
State tensor_state(PyObject *tensor)
{
    const uint64_t *read = words_of(tensor);
    const uint64_t *storage = (const uint64_t *)(uintptr_t)read[first.storage];
    const uint64_t *counter = (const uint64_t *)(uintptr_t)read[first.counter];
    return (State){.storage = storage == NULL ? 0 : storage[first.data],
                   .offset = read[first.offset],
                   .version = counter == NULL ? 0 : (uint32_t)counter[first.version],
                   .has_version = counter != NULL};
}

/* How much memory the storage of a tensor has. */
uint64_t tensor_storage_bytes(PyObject *tensor)
{
    const uint64_t *storage = (const uint64_t *)(uintptr_t)words_of(tensor)[first.storage];
    return storage == NULL ? 0 : storage[first.nbytes];
}

#define WORDS 12

static int take_words(PyObject *found)
{
    uint8_t *words[WORDS] = {&first.object,   &first.sizes, &first.strides, &first.offset,  &first.first,  &first.last,
                             &first.storage, &first.autograd, &first.data,  &first.counter, &first.version, &first.nbytes};
    for (int index = 0; index < WORDS; index++) {
        long word = PyTuple_GET_SIZE(found) == WORDS ? PyLong_AsLong(PyTuple_GET_ITEM(found, index)) : -1;
        if (word < 0 || word > UINT8_MAX) {
            PyErr_SetString(PyExc_ValueError, "twelve words tell what a tensor looks like");
            return 0;
        }
        *words[index] = (uint8_t)word;
    }
    return 1;
}

static int take_masks(PyObject *found)
{
    for (int index = 0; index <= first.last - first.first; index++) {
        int is_there = index < PyTuple_GET_SIZE(found);
        masks[index] = is_there ? PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(found, index)) : 0;
        if (!is_there || PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "each word from first to last has a mask");
            return 0;
        }
    }
    return 1;
}

/* Take what is needed of torch, which is never let go of. */
PyObject *torch_use(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tensor", "parameter", "words", "masks", "requires_grad", "modes", NULL};
    PyObject *tensor, *parameter, *found, *compared, *gradient, *mode;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!O!O!O!O", names, &PyType_Type, &tensor, &PyType_Type,
                                     &parameter, &PyTuple_Type, &found, &PyTuple_Type, &compared, &PyGetSetDescr_Type,
                                     &gradient, &mode)) {
        return NULL;
    }
    /* A Words is a named tuple; its items are parsed as a plain one's. */
    if (!take_words(found)) {
        return NULL;
    }
    if (first.last - first.first + 1 > MOST_KEYS) {
        PyErr_SetString(PyExc_ValueError, "too many words tell a tensor's kind");
        return NULL;
    }
    if (!take_masks(compared)) {
        return NULL;
    }
    first.tensor = (PyTypeObject *)Py_NewRef(tensor);
    first.parameter = (PyTypeObject *)Py_NewRef(parameter);
    requires_grad = ((PyGetSetDescrObject *)Py_NewRef(gradient))->d_getset;
    modes = Py_NewRef(mode);
    Py_RETURN_NONE;
}
