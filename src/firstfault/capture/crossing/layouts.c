/* What calls look like of which nothing is lost: found by the words of a walk, and by nothing else. */
#include "crossing.h"
#include <string.h>
#include <structmember.h>

#define BUCKETS 8192 /* powers of two */
#define SEEN 4096
#define MOST_LAYOUTS_KEPT 8192
#define MOST_BYTES (16u << 20)

static uint64_t hash_of(const Where *where, const Walk *walk)
{
    uint64_t hash = mixed_text(mixed_text(mixed_text(0, where->op), where->target), where->site);
    for (int index = 0; index < walk->words; index++) {
        hash = mixed(hash, walk->word[index]);
    }
    return hash;
}

static int is_of(const Layout *layout, const Where *where, const Walk *walk, uint64_t hash)
{
    return layout->hash == hash && layout->words == walk->words &&
           memcmp(layout->word, walk->word, (size_t)walk->words * sizeof(uint64_t)) == 0 &&
           same_text(layout->op, where->op) && same_text(layout->target, where->target) &&
           same_text(layout->site, where->site);
}

static Layout **link_of(const Layouts *layouts, const Where *where, const Walk *walk, uint64_t hash)
{
    Layout **link = &layouts->bucket[hash & (BUCKETS - 1)];
    while (*link != NULL && !is_of(*link, where, walk, hash)) {
        link = &(*link)->next;
    }
    return link;
}

/* The layout of a call, borrowed; NULL where none is kept. */
Layout *layout_find(const Layouts *layouts, const Where *where, const Walk *walk)
{
    return *link_of(layouts, where, walk, hash_of(where, walk));
}

/* Which of the tensors of a call are those that it is declared to change. */
const uint8_t *layout_declared(Layout *layout, PyObject *mutates)
{
    if (layout->mutates != mutates) {
        uint8_t declared[MOST_TENSORS];
        for (int index = 0; index < layout->tensors; index++) {
            PyObject *path = PyTuple_GET_ITEM(layout->paths, index);
            int is_declared = PySequence_Contains(mutates, PyTuple_GET_ITEM(path, 0));
            if (is_declared < 0) {
                return NULL;
            }
            declared[index] = (uint8_t)is_declared;
        }
        memcpy(layout->declared, declared, (size_t)layout->tensors);
        Py_XSETREF(layout->mutates, Py_NewRef(mutates));
    }
    return layout->declared;
}

/* --- keeping */

static void layout_dealloc(PyObject *self)
{
    Layout *layout = (Layout *)self;
    for (int index = 0; index < layout->constants; index++) {
        Py_DECREF(layout->constant[index]);
    }
    for (int index = 0; index < layout->plains; index++) {
        Py_DECREF(layout->plain[index]);
    }
    Py_XDECREF(layout->op);
    Py_XDECREF(layout->target);
    Py_XDECREF(layout->site);
    Py_XDECREF(layout->paths);
    Py_XDECREF(layout->labels);
    Py_XDECREF(layout->readings);
    Py_XDECREF(layout->fixed);
    Py_XDECREF(layout->mutates);
    PyMem_Free(layout->word);
    PyMem_Free(layout->shape);
    PyObject_Free(layout);
}

static PyMemberDef layout_members[] = {
    {"number", T_ULONG, offsetof(Layout, number), READONLY, NULL},
    {"stretch", T_ULONG, offsetof(Layout, stretch), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject LayoutType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "firstfault.capture._crossing.Layout",
    .tp_basicsize = sizeof(Layout),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = layout_dealloc,
    .tp_members = layout_members,
};

int layouts_start(Layouts *layouts)
{
    layouts->count = layouts->bytes = 0;
    layouts->bucket = PyMem_Calloc(BUCKETS, sizeof(Layout *));
    layouts->seen = PyMem_Calloc(SEEN, sizeof(uint64_t));
    if (layouts->bucket == NULL || layouts->seen == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static size_t bytes_of(const Layout *layout)
{
    return sizeof(Layout) + ((size_t)layout->words + (size_t)layout->plains + (size_t)layout->constants) * 8 +
           (size_t)layout->tensors * sizeof(Shape);
}

static void take_out(Layouts *layouts, Layout **link)
{
    Layout *layout = *link;
    *link = layout->next;
    layout->next = NULL;
    layouts->count--;
    layouts->bytes -= bytes_of(layout);
    Py_DECREF((PyObject *)layout); /* last: it may run others, who find the table whole */
}

/* Forget all of them. */
void layouts_clear(Layouts *layouts)
{
    for (size_t index = 0; layouts->bucket != NULL && index < BUCKETS; index++) {
        while (layouts->bucket[index] != NULL) {
            take_out(layouts, &layouts->bucket[index]);
        }
    }
}

void layouts_end(Layouts *layouts)
{
    layouts_clear(layouts);
    PyMem_Free(layouts->bucket);
    PyMem_Free(layouts->seen);
}

/* Whether what looks so was described before; if not, it is from now on. */
static int was_seen(Layouts *layouts, uint64_t hash)
{
    uint64_t *seen = &layouts->seen[hash & (SEEN - 1)];
    int is_seen = *seen == hash;
    *seen = hash;
    return is_seen;
}

static int fill(Layout *layout, const Walk *walk)
{
    size_t words = (size_t)walk->words, constants = (size_t)walk->constants, plains = (size_t)walk->plains;
    layout->word = PyMem_Malloc((words + constants + plains) * 8);
    layout->shape = PyMem_Malloc((size_t)walk->tensors * sizeof(Shape));
    if (layout->word == NULL || layout->shape == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(layout->shape, walk->shape, (size_t)walk->tensors * sizeof(Shape));
    layout->constant = (PyObject **)(uintptr_t)(layout->word + words);
    layout->plain = layout->constant + constants;
    memcpy(layout->word, walk->word, words * 8);
    for (; layout->constants < walk->constants; layout->constants++) {
        layout->constant[layout->constants] = Py_NewRef(walk->constant[layout->constants]);
    }
    for (; layout->plains < walk->plains; layout->plains++) {
        layout->plain[layout->plains] = Py_NewRef(walk->plain[layout->plains]);
    }
    layout->words = walk->words;
    layout->tensors = walk->tensors;
    return 0;
}

/* Whether a tensor is the one that Python has described, and lies where that says. */
static int is_described(PyObject *found, const Walk *walk, int index)
{
    State state = walk->state[index];
    PyObject *tensor, *version, *path, *label;
    unsigned long long storage, offset;
    if (!PyTuple_Check(found) || !PyArg_ParseTuple(found, "OKKOO!O!", &tensor, &storage, &offset, &version,
                                                   &PyTuple_Type, &path, &PyBytes_Type, &label)) {
        PyErr_Clear();
        return 0;
    }
    int has_version = version != Py_None;
    unsigned long count = has_version ? PyLong_AsUnsignedLong(version) : 0;
    PyErr_Clear();
    return tensor == walk->tensor[index] && storage == state.storage && offset == state.offset &&
           has_version == state.has_version && (!has_version || count == state.version);
}

/* Take the paths of the tensors that Python has described; 0 where they are not those of the walk. */
static int take_paths(Layout *layout, const Walk *walk, PyObject *found)
{
    if (PyList_GET_SIZE(found) != walk->tensors) {
        return 0;
    }
    for (int index = 0; index < walk->tensors; index++) {
        if (!is_described(PyList_GET_ITEM(found, index), walk, index)) {
            return 0;
        }
    }
    layout->paths = PyTuple_New(walk->tensors);
    layout->labels = PyTuple_New(walk->tensors);
    if (layout->paths == NULL || layout->labels == NULL) {
        return 0;
    }
    for (int index = 0; index < walk->tensors; index++) {
        PyObject *each = PyList_GET_ITEM(found, index), *label = PyTuple_GET_ITEM(each, 5);
        PyTuple_SET_ITEM(layout->paths, index, Py_NewRef(PyTuple_GET_ITEM(each, 4)));
        PyTuple_SET_ITEM(layout->labels, index, Py_NewRef(label));
        layout->labels_size += (size_t)PyBytes_GET_SIZE(label) + 1;
    }
    return 1;
}

/* Keep what a call looks like, in the place of what looked the same; a new reference, to None where that cannot be.
 *
 * What is seen for the first time is not kept: much never comes again, and a reader has to keep what is.
 * ``found`` is a list of what Python says of each tensor: itself, its storage and offset, its version, its path, and
 * that as it stands in a line; ``readings`` how those that the device reads are read, and ``fixed`` which are not for
 * their size.
 */
Layout *layout_keep(Layouts *layouts, const Where *where, const Walk *walk, unsigned long number, PyObject *found,
                    PyObject *readings, PyObject *fixed)
{
    uint64_t hash = hash_of(where, walk);
    if (*link_of(layouts, where, walk, hash) == NULL && !was_seen(layouts, hash)) {
        return (Layout *)Py_NewRef(Py_None);
    }
    Layout *layout = PyObject_New(Layout, &LayoutType);
    if (layout == NULL) {
        return NULL;
    }
    memset((char *)layout + sizeof(PyObject), 0, sizeof *layout - sizeof(PyObject));
    layout->number = number;
    Py_XINCREF(layout->op = where->op);
    Py_XINCREF(layout->target = where->target);
    Py_XINCREF(layout->site = where->site);
    layout->hash = hash;
    layout->readings = PyBytes_GET_SIZE(readings) > 0 ? Py_NewRef(readings) : NULL;
    layout->fixed = PyBytes_GET_SIZE(fixed) > 0 ? Py_NewRef(fixed) : NULL;
    if (!readings_are_of(readings, fixed, walk->tensors) || fill(layout, walk) < 0 || !take_paths(layout, walk, found)) {
        Py_DECREF((PyObject *)layout);
        return PyErr_Occurred() ? NULL : (Layout *)Py_NewRef(Py_None);
    }
    if (layouts->count >= MOST_LAYOUTS_KEPT || layouts->bytes >= MOST_BYTES) {
        layouts_clear(layouts);
    }
    Layout **link = link_of(layouts, where, walk, layout->hash);
    if (*link != NULL) {
        take_out(layouts, link);
    }
    Layout **bucket = &layouts->bucket[layout->hash & (BUCKETS - 1)];
    layout->next = *bucket;
    *bucket = (Layout *)Py_NewRef((PyObject *)layout);
    layouts->count++;
    layouts->bytes += bytes_of(layout);
    return layout;
}
