/* What a call was given, taken apart: what makes it look as it does, and what changes from call to call.
 *
 * The words of two walks are the same if and only if describe.py describes both the same, but for their tensors' places,
 * versions, sizes and strides, and their plain values. Whatever it does not know for sure it leaves to that.
 */
#include "crossing.h"
#include <math.h>
#include <string.h>

/* As in describe.py. */
#define MAX_ITEMS 64
#define MAX_DEPTH 6
#define MAX_NODES 512
#define MAX_TEXT 1000
#define LONGEST_KEY 200

/* What a word says that others follow of. */
enum { TENSOR = 1, PLAIN, LIST, DICT, TEXT, NUMBER, NOTHING };

#define MOST_SPARE 4

static Walk *spare;
static int spares;

static int walk_value(Walk *walk, PyObject *value, int depth);

/* --- words */

static int add_word(Walk *walk, uint64_t word)
{
    if (walk->words == MOST_WORDS) {
        return 0;
    }
    walk->word[walk->words++] = word;
    return 1;
}

static int add_text(Walk *walk, const char *text, size_t length)
{
    size_t count = (length + 7) / 8;
    if (walk->words + 2 + count > MOST_WORDS) {
        return 0;
    }
    walk->word[walk->words++] = TEXT;
    walk->word[walk->words++] = length;
    if (count > 0) {
        walk->word[walk->words + (int)count - 1] = 0;
        memcpy(walk->word + walk->words, text, length);
    }
    walk->words += (int)count;
    return 1;
}

/* A short string of ASCII by what it says: another of the same text is the same name. */
static int add_name(Walk *walk, PyObject *name)
{
    return PyUnicode_CheckExact(name) && PyUnicode_IS_READY(name) && PyUnicode_IS_COMPACT_ASCII(name) &&
           PyUnicode_GET_LENGTH(name) <= LONGEST_KEY &&
           add_text(walk, (const char *)PyUnicode_1BYTE_DATA(name), (size_t)PyUnicode_GET_LENGTH(name));
}

static int add_constant(Walk *walk, PyObject *value)
{
    if (walk->constants == MOST_CONSTANTS || !add_word(walk, (uint64_t)(uintptr_t)value)) {
        return 0;
    }
    walk->constant[walk->constants++] = Py_NewRef(value);
    return 1;
}

/* --- values */

static int add_plain(Walk *walk, PyObject *value)
{
    if (walk->plains == MOST_PLAINS || !add_word(walk, PLAIN)) {
        return 0;
    }
    walk->plain[walk->plains++] = Py_NewRef(value);
    return 1;
}

static int is_machine_word(PyObject *value)
{
    int overflow;
    (void)PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

/* Whether a value is one that a line can carry by itself, of any of those types: it may become one of another. */
static int is_plain(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return value == Py_None || type == &PyBool_Type || (type == &PyLong_Type && is_machine_word(value)) ||
           (type == &PyFloat_Type && isfinite(PyFloat_AS_DOUBLE(value))) ||
           (type == &PyUnicode_Type && PyUnicode_GET_LENGTH(value) <= MAX_TEXT);
}

static int is_of_plain_type(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == Py_TYPE(Py_None) || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyUnicode_Type;
}

static int add_tensor(Walk *walk, PyObject *tensor)
{
    if (walk->tensors == MOST_TENSORS || walk->words + 2 + LONGEST_KIND > MOST_WORDS) {
        return 0;
    }
    uint64_t *start = walk->word + walk->words;
    int words = tensor_kind(tensor, start + 2);
    State state = tensor_state(tensor);
    Shape *shape = &walk->shape[walk->tensors];
    if (words == 0) {
        return 0;
    }
    *shape = tensor_shape(tensor);
    if (state.offset != 0 && (state.storage == 0 || shape_elements(shape) == 0)) {
        return 0; /* where such a tensor begins does not follow from its storage and its size */
    }
    start[0] = TENSOR;
    start[1] = state.has_version;
    walk->words += 2 + words;
    walk->state[walk->tensors] = state;
    walk->tensor[walk->tensors++] = Py_NewRef(tensor);
    return 1;
}

/* Enter a container of so many values; how many of them are described, or -1 where that is not for here. */
static Py_ssize_t described_of(Walk *walk, Py_ssize_t length, int depth)
{
    Py_ssize_t count = length < MAX_ITEMS ? length : MAX_ITEMS;
    if (depth > MAX_DEPTH || count > walk->nodes) {
        return -1;
    }
    walk->nodes -= (int)count;
    return count;
}

static int walk_held(Walk *walk, PyObject *value, int depth)
{
    Py_INCREF(value); /* Python may be asked on the way, and change what holds it */
    int done = walk_value(walk, value, depth);
    Py_DECREF(value);
    return done;
}

static int walk_sequence(Walk *walk, PyObject *value, uint64_t kind, int depth)
{
    Py_ssize_t length = Py_SIZE(value), count = described_of(walk, length, depth);
    if (count < 0 || !add_word(walk, LIST) || !add_word(walk, kind) || !add_word(walk, (uint64_t)length)) {
        return 0;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        if (Py_SIZE(value) != length) {
            return 0;
        }
        PyObject *item = PyList_Check(value) ? PyList_GET_ITEM(value, index) : PyTuple_GET_ITEM(value, index);
        if (!walk_held(walk, item, depth + 1)) {
            return 0;
        }
    }
    return 1;
}

static int add_key(Walk *walk, PyObject *key)
{
    if (PyLong_CheckExact(key) && is_machine_word(key)) {
        return add_word(walk, NUMBER) && add_word(walk, (uint64_t)PyLong_AsLongLong(key));
    }
    return add_name(walk, key);
}

static int walk_dict(Walk *walk, PyObject *value, uint64_t kind, int depth)
{
    Py_ssize_t length = PyDict_GET_SIZE(value), count = described_of(walk, length, depth), at = 0;
    if (count < 0 || !add_word(walk, DICT) || !add_word(walk, kind) || !add_word(walk, (uint64_t)length)) {
        return 0;
    }
    PyObject *key, *item;
    while (count-- > 0) {
        if (PyDict_GET_SIZE(value) != length || !PyDict_Next(value, &at, &key, &item) || !add_key(walk, key) ||
            !walk_held(walk, item, depth + 1)) {
            return 0;
        }
    }
    return 1;
}

/* An attribute, a new reference; NULL where there is none, or on an error. Of a class that adds nothing to the lookup. */
static PyObject *attribute(PyObject *value, PyObject *name)
{
    PyObject *found = NULL;
#if PY_VERSION_HEX >= 0x030d0000
    (void)PyObject_GetOptionalAttr(value, name, &found);
#else
    (void)_PyObject_LookupAttr(value, name, &found);
#endif
    return found;
}

/* The fields of a dataclass: those that it has, of which the first are described. */
static int walk_fields(Walk *walk, PyObject *value, const Kind *kind, int depth)
{
    int left = MAX_ITEMS;
    if (depth > MAX_DEPTH || !add_word(walk, kind->serial)) {
        return 0;
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(kind->names); index++) {
        PyObject *item = attribute(value, PyTuple_GET_ITEM(kind->names, index));
        int done;
        if (item == NULL) {
            done = !PyErr_Occurred() && add_word(walk, NOTHING);
        }
        else if (left-- > 0) {
            done = walk->nodes-- > 0 && walk_value(walk, item, depth + 1);
        }
        else {
            done = add_word(walk, 0);
        }
        Py_XDECREF(item);
        if (!done) {
            return 0;
        }
    }
    return 1;
}

static int walk_asked(Walk *walk, PyObject *value)
{
    PyObject *text = kind_described(value);
    int done = text != NULL && add_text(walk, PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text));
    Py_XDECREF(text);
    return done;
}

/* What an object says of itself that prints the same whenever it is the same. */
static int add_attribute(Walk *walk, PyObject *value)
{
    if (PyUnicode_CheckExact(value)) {
        return add_name(walk, value);
    }
    Kind *kind = kind_of(Py_TYPE(value));
    int done = kind != NULL && kind->how == SINGLE && add_word(walk, kind->serial) && add_constant(walk, value);
    Py_XDECREF((PyObject *)kind);
    return done;
}

/* An object that is told by its class, and by what it says itself of a shape, a type and a device. */
static int walk_object(Walk *walk, PyObject *value, const Kind *kind)
{
    int start = walk->words;
    if (!add_word(walk, kind->serial)) {
        return 0;
    }
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(kind->names); index++) {
        PyObject *found = attribute(value, PyTuple_GET_ITEM(kind->names, index));
        if (PyErr_Occurred()) {
            return 0;
        }
        int done = found == NULL || found == Py_None ? add_word(walk, NOTHING) : add_attribute(walk, found);
        Py_XDECREF(found);
        if (!done) {
            walk->words = start;
            return walk_asked(walk, value);
        }
    }
    return 1;
}

static int walk_kind(Walk *walk, PyObject *value, const Kind *kind, int depth)
{
    switch (kind->how) {
    case MEMBER:
    case SINGLE:
        return add_word(walk, kind->serial) && add_constant(walk, value);
    case FIELDS:
        return walk_fields(walk, value, kind, depth);
    case OBJECT:
        return walk_object(walk, value, kind);
    case ASKED:
        return walk_asked(walk, value);
    case SEQUENCE:
        return walk_sequence(walk, value, kind->serial, depth);
    case MAPPING:
        return walk_dict(walk, value, kind->serial, depth);
    default:
        return 0;
    }
}

/* Take in a value, so many levels deep; 0, with or without an error, where that is not for here. */
static int walk_value(Walk *walk, PyObject *value, int depth)
{
    if (is_tensor(value)) {
        return add_tensor(walk, value);
    }
    if (is_of_plain_type(value)) {
        return is_plain(value) && add_plain(walk, value);
    }
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        return walk_sequence(walk, value, (uint64_t)(uintptr_t)Py_TYPE(value), depth);
    }
    if (PyDict_CheckExact(value)) {
        return walk_dict(walk, value, 0, depth);
    }
    Kind *kind = kind_of(Py_TYPE(value));
    int done = kind != NULL && walk_kind(walk, value, kind, depth);
    Py_XDECREF((PyObject *)kind);
    return done;
}

/* --- walks */

/* A walk that has met nothing yet; NULL, with an error, where there is no memory. */
Walk *walk_new(void)
{
    Walk *walk = spare;
    if (walk != NULL) {
        spare = walk->next;
        spares--;
    }
    else if ((walk = PyMem_Malloc(sizeof(Walk))) == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    walk->words = walk->tensors = walk->plains = walk->constants = 0;
    walk->nodes = MAX_NODES;
    return walk;
}

void walk_free(Walk *walk)
{
    for (int index = 0; index < walk->tensors; index++) {
        Py_DECREF(walk->tensor[index]);
    }
    for (int index = 0; index < walk->plains; index++) {
        Py_DECREF(walk->plain[index]);
    }
    for (int index = 0; index < walk->constants; index++) {
        Py_DECREF(walk->constant[index]);
    }
    if (spares == MOST_SPARE) {
        PyMem_Free(walk);
        return;
    }
    spares++;
    walk->next = spare;
    spare = walk;
}

/* Take in the arguments of a call: those by position, and as many by keyword as there are names. */
int walk_arguments(Walk *walk, PyObject *const *values, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (!add_word(walk, (uint64_t)count) || !add_word(walk, (uint64_t)named)) {
        return 0;
    }
    for (Py_ssize_t index = 0; index < count + named; index++) {
        if ((index >= count && !add_name(walk, PyTuple_GET_ITEM(names, index - count))) ||
            !walk_held(walk, values[index], 1)) {
            return 0;
        }
    }
    return 1;
}

int walk_result(Walk *walk, PyObject *result)
{
    return walk_value(walk, result, 0);
}

/* What lies at a path among the arguments of a call now, a new reference; NULL for nothing, as in_place.py's _at. */
PyObject *value_at(const Arguments *given, PyObject *path)
{
    PyObject *root = PyTuple_GET_ITEM(path, 0), *value = argument_at(given, root);
    Py_XINCREF(value);
    for (Py_ssize_t step = 1; value != NULL && step < PyTuple_GET_SIZE(path); step++) {
        PyObject *key = PyTuple_GET_ITEM(path, step), *inner = NULL;
        int is_list = PyList_CheckExact(value);
        if (is_list || PyTuple_CheckExact(value)) {
            Py_ssize_t index = PyLong_CheckExact(key) ? PyLong_AsSsize_t(key) : -1;
            if (index >= 0 && index < Py_SIZE(value)) {
                inner = Py_NewRef(is_list ? PyList_GET_ITEM(value, index) : PyTuple_GET_ITEM(value, index));
            }
        }
        else if (PyDict_CheckExact(value)) {
            inner = Py_XNewRef(PyDict_GetItemWithError(value, key));
        }
        else {
            Kind *kind = kind_of(Py_TYPE(value));
            int has_fields = kind != NULL && (kind->how == FIELDS || kind->how == MAPPING) && kind->is_of_class;
            inner = has_fields && PyUnicode_Check(key) ? attribute(value, key) : NULL;
            Py_XDECREF((PyObject *)kind);
        }
        Py_SETREF(value, inner);
    }
    return value;
}
