/* Calls that look like one before. What a look is, and which can be kept, is repeats.py's to say.
 *
 * Two tables: a form is an operator at a place with values of certain types, and says which of the values stand for
 * themselves; a look is found by its form and those.
 */
#include "crossing.h"
#include <string.h>

#define FORMS 2048 /* powers of two */
#define LOOKS 8192
#define MOST_LOOKS 8192

typedef struct Form {
    struct Form *next, *next_gone;
    uint64_t hash;
    PyObject *op, *target, *site, *names;
    PyObject *text; /* what is written of all its calls, where only names are */
    int types, selves;
    uint8_t self[MOST_VALUES]; /* which values stand for themselves */
    uintptr_t type[];
} Form;

/* --- the values of a call */

#define CONTAINER 1 /* the low bit of a type's word: its length follows */

/* The values with those in a tuple or list in its place, so many deep, and the types of all; whether they fit. */
int flatten(Flat *flat, PyObject *const *values, Py_ssize_t count, int depth)
{
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *value = values[index];
        PyTypeObject *type = Py_TYPE(value);
        int is_list = type == &PyList_Type;
        if (flat->types + 2 > MOST_TYPES || flat->values == MOST_VALUES) {
            return 0;
        }
        if (depth > 0 && (is_list || type == &PyTuple_Type)) {
            flat->type[flat->types++] = (uintptr_t)type | CONTAINER;
            flat->type[flat->types++] = (uintptr_t)Py_SIZE(value);
            PyObject **items = is_list ? ((PyListObject *)value)->ob_item : ((PyTupleObject *)value)->ob_item;
            if (!flatten(flat, items, Py_SIZE(value), depth - 1)) {
                return 0;
            }
        }
        else {
            flat->type[flat->types++] = (uintptr_t)type;
            flat->value[flat->values++] = value;
        }
    }
    return 1;
}

/* Hold the values: to make an object may run the garbage collector, and with it whatever changes a list. */
void flat_hold(Flat *flat)
{
    for (int index = 0; index < flat->values; index++) {
        Py_INCREF(flat->value[index]);
    }
}

void flat_drop(Flat *flat)
{
    for (int index = 0; index < flat->values; index++) {
        Py_DECREF(flat->value[index]);
    }
}

/* --- finding */

uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

/* With the hash that a string keeps: another string of the same text is the same name. */
uint64_t mixed_text(uint64_t hash, PyObject *text)
{
    return text == NULL ? hash : mixed(hash, (uint64_t)PyObject_Hash(text));
}

static uint64_t form_hash(const Where *where, const Flat *flat)
{
    uint64_t hash = mixed_text(mixed_text(mixed_text(0, where->op), where->target), where->site);
    for (Py_ssize_t index = 0; where->names != NULL && index < PyTuple_GET_SIZE(where->names); index++) {
        hash = mixed_text(hash, PyTuple_GET_ITEM(where->names, index));
    }
    for (int index = 0; index < flat->types; index++) {
        hash = mixed(hash, flat->type[index]);
    }
    return hash;
}

int same_text(PyObject *one, PyObject *other)
{
    return one == other || (one != NULL && other != NULL && PyUnicode_Compare(one, other) == 0);
}

static int same_names(PyObject *one, PyObject *other)
{
    Py_ssize_t count = one == NULL ? 0 : PyTuple_GET_SIZE(one);
    if (one == other || count != (other == NULL ? 0 : PyTuple_GET_SIZE(other))) {
        return one == other;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        if (!same_text(PyTuple_GET_ITEM(one, index), PyTuple_GET_ITEM(other, index))) {
            return 0;
        }
    }
    return 1;
}

static Form *form_find(Looks *looks, const Where *where, const Flat *flat, uint64_t hash)
{
    Form *form = looks->forms[hash & (FORMS - 1)];
    for (; form != NULL; form = form->next) {
        if (form->hash == hash && form->types == flat->types &&
            memcmp(form->type, flat->type, (size_t)flat->types * sizeof(uintptr_t)) == 0 &&
            same_text(form->op, where->op) && same_text(form->target, where->target) &&
            same_text(form->site, where->site) && same_names(form->names, where->names)) {
            return form;
        }
    }
    return NULL;
}

static uint64_t look_hash(const Form *form, const Flat *flat)
{
    uint64_t hash = mixed((uint64_t)(uintptr_t)form, 0);
    for (int index = 0; index < form->selves; index++) {
        hash = mixed(hash, (uint64_t)(uintptr_t)flat->value[form->self[index]]);
    }
    return hash;
}

int is_referred_to(PyObject *reference, PyObject *value)
{
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *found;
    if (PyWeakref_GetRef(reference, &found) < 0) {
        return -1;
    }
    Py_XDECREF(found);
    return found == value;
#else
    return PyWeakref_GET_OBJECT(reference) == value;
#endif
}

/* Whether a value is what a look has there; -1 on an error. */
static int is_like(PyObject *wanted, PyObject *value)
{
    if (wanted == Py_Ellipsis || wanted == value) {
        return 1;
    }
    if (PyWeakref_CheckRef(wanted)) {
        return is_referred_to(wanted, value);
    }
    return PyObject_RichCompareBool(wanted, value, Py_EQ);
}

/* The parts of a look, in the order in which they are read.
 *
 * places: of the distinct tensors, of the other values, and of pairs of values that are one and the same tensor; then
 *     of all tensors, and the size of an item of each
 * others: a weak reference to what a value must be, Ellipsis for anything, or what it must be equal to
 * kinds: of the distinct tensors
 */
typedef struct {
    uint8_t *distinct, *others, *again, *tensors, *sizes;
    PyObject **other;
    uint64_t *kind;
} Parts;

static size_t places_of(const Look *look)
{
    return (look->distinct + look->others + 2u * look->again + 2u * look->tensors + 7u) / 8u;
}

static Parts look_parts(const Look *look)
{
    Parts parts;
    parts.distinct = (uint8_t *)look->part;
    parts.others = parts.distinct + look->distinct;
    parts.again = parts.others + look->others;
    parts.tensors = parts.again + 2 * look->again;
    parts.sizes = parts.tensors + look->tensors;
    parts.other = (PyObject **)(uintptr_t)(look->part + places_of(look));
    parts.kind = (uint64_t *)(uintptr_t)(look->part + places_of(look) + look->others);
    return parts;
}

/* Whether values look like those of a look; -1 on an error. */
static int matches(const Look *look, const Flat *flat)
{
    Parts parts = look_parts(look);
    for (int index = 0; index < look->others; index++) {
        int like = is_like(parts.other[index], flat->value[parts.others[index]]);
        if (like != 1) {
            return like;
        }
    }
    for (int index = 0; index < look->distinct; index++) {
        int words = tensor_is_of(flat->value[parts.distinct[index]], parts.kind);
        if (words == 0) {
            return 0;
        }
        parts.kind += words;
    }
    for (int index = 0; index < look->again; index++) {
        if (flat->value[parts.again[2 * index]] != flat->value[parts.again[2 * index + 1]]) {
            return 0;
        }
    }
    return 1;
}

/* The look of a call, or NULL where it has none that is kept; on an error too, which is left to who finds it again.
 *
 * To be called, and its answer used, while the looks are held.
 */
Look *look_find(Looks *looks, const Where *where, Flat *flat)
{
    Form *form = form_find(looks, where, flat, form_hash(where, flat));
    if (form == NULL) {
        return NULL;
    }
    uint64_t hash = look_hash(form, flat);
    Look **bucket = &looks->looks[hash & (LOOKS - 1)];
    for (Look **link = bucket; *link != NULL; link = &(*link)->next) {
        Look *look = *link;
        if (look->hash != hash || look->form != form) {
            continue;
        }
        unsigned long before = looks->changes;
        int is_match = matches(look, flat);
        if (is_match < 0) {
            PyErr_Clear();
            return NULL;
        }
        if (is_match && look != *bucket && looks->changes == before) {
            *link = look->next; /* to the front: the next call is likely to look so too */
            look->next = *bucket;
            *bucket = look;
            looks->changes++;
        }
        if (is_match) {
            return look;
        }
    }
    return NULL;
}

/* Where the tensors of a call begin, 0 for one without memory. */
void look_addresses(const Look *look, const Flat *flat, uint64_t *addresses)
{
    Parts parts = look_parts(look);
    for (int index = 0; index < look->tensors; index++) {
        addresses[index] = tensor_address(flat->value[parts.tensors[index]], parts.sizes[index]);
    }
}

/* The shapes of the tensors of a call; 0, with nothing told, where all are those that are described. */
int look_shapes(const Look *look, const Flat *flat, Shape *shapes)
{
    Parts parts = look_parts(look);
    const Shape *described = look->known->shape;
    int index = 0;
    while (index < look->tensors && tensor_is_shaped(flat->value[parts.tensors[index]], &described[index])) {
        index++;
    }
    if (index == look->tensors) {
        return 0;
    }
    for (index = 0; index < look->tensors; index++) {
        shapes[index] = tensor_shape(flat->value[parts.tensors[index]]);
    }
    return 1;
}

/* --- keeping */

static void look_free(Look *look)
{
    Parts parts = look_parts(look);
    for (int index = 0; index < look->others; index++) {
        Py_XDECREF(parts.other[index]);
    }
    Py_XDECREF((PyObject *)look->known);
    PyMem_Free(look);
}

static void form_free(Form *form)
{
    for (int index = 0; index < form->types; index++) {
        Py_DECREF((PyObject *)(form->type[index] & ~(uintptr_t)CONTAINER));
        index += (int)(form->type[index] & CONTAINER);
    }
    Py_XDECREF(form->op);
    Py_XDECREF(form->target);
    Py_XDECREF(form->site);
    Py_XDECREF(form->names);
    Py_XDECREF(form->text);
    PyMem_Free(form);
}

int looks_start(Looks *looks)
{
    looks->forms = PyMem_Calloc(FORMS, sizeof(Form *));
    looks->looks = PyMem_Calloc(LOOKS, sizeof(Look *));
    looks->count = 0;
    if (looks->forms == NULL || looks->looks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void let_go(Looks *looks)
{
    Look *look = looks->gone;
    Form *form = looks->gone_forms;
    looks->gone = NULL;
    looks->gone_forms = NULL;
    while (look != NULL) {
        Look *next = look->next_gone;
        look_free(look);
        look = next;
    }
    while (form != NULL) {
        Form *next = form->next_gone;
        form_free(form);
        form = next;
    }
}

/* While they are held, nothing that was found is let go of. */
void looks_hold(Looks *looks)
{
    looks->readers++;
}

void looks_drop(Looks *looks)
{
    if (--looks->readers == 0 && (looks->gone != NULL || looks->gone_forms != NULL)) {
        let_go(looks);
    }
}

static void take_out(Looks *looks, Look **link)
{
    Look *look = *link;
    *link = look->next;
    look->next_gone = looks->gone;
    looks->gone = look;
    looks->count--;
    looks->changes++;
}

/* Forget all looks. */
void looks_clear(Looks *looks)
{
    looks_hold(looks);
    for (size_t index = 0; looks->looks != NULL && index < LOOKS; index++) {
        while (looks->looks[index] != NULL) {
            take_out(looks, &looks->looks[index]);
        }
    }
    for (size_t index = 0; looks->forms != NULL && index < FORMS; index++) {
        for (Form *form; (form = looks->forms[index]) != NULL;) {
            looks->forms[index] = form->next;
            form->next_gone = looks->gone_forms;
            looks->gone_forms = form;
        }
    }
    looks->count = 0; /* forms with a text are counted as well */
    looks_drop(looks);
}

static Form *form_make(Looks *looks, const Where *where, const Flat *flat, uint64_t hash)
{
    size_t types = (size_t)flat->types * sizeof(uintptr_t);
    Form *form = PyMem_Malloc(sizeof(Form) + types);
    if (form == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    form->hash = hash;
    Py_XINCREF(form->op = where->op);
    Py_XINCREF(form->target = where->target);
    Py_XINCREF(form->site = where->site);
    Py_XINCREF(form->names = where->names);
    form->text = NULL;
    form->types = flat->types;
    form->selves = 0;
    memcpy(form->type, flat->type, types);
    for (int index = 0; index < form->types; index++) {
        Py_INCREF((PyObject *)(form->type[index] & ~(uintptr_t)CONTAINER));
        index += (int)(form->type[index] & CONTAINER);
    }
    form->next = looks->forms[hash & (FORMS - 1)];
    looks->forms[hash & (FORMS - 1)] = form;
    return form;
}

/* What is found of the values of a call before it is known how large their look is. */
typedef struct {
    Look head;
    uint8_t distinct[MOST_VALUES], others[MOST_VALUES], again[2 * MOST_VALUES], tensors[MOST_VALUES], sizes[MOST_VALUES];
    uint64_t kind[MOST_VALUES * LONGEST_KIND];
} Draft;

static int item_size(PyObject *tensor)
{
    PyObject *size = PyObject_GetAttrString(tensor, "itemsize");
    long bytes = size == NULL ? -1 : PyLong_AsLong(size);
    Py_XDECREF(size);
    PyErr_Clear();
    return bytes > 0 && bytes <= UINT8_MAX ? (int)bytes : 0;
}

/* Take in the next value, a tensor; whether it can be compared later. */
static int draft_tensor(Draft *draft, const Flat *flat, int index)
{
    Look *head = &draft->head;
    int first = 0, size = item_size(flat->value[index]);
    while (flat->value[first] != flat->value[index]) {
        first++;
    }
    draft->sizes[head->tensors] = (uint8_t)size;
    draft->tensors[head->tensors++] = (uint8_t)index;
    if (first < index) {
        draft->again[2 * head->again] = (uint8_t)first;
        draft->again[2 * head->again++ + 1] = (uint8_t)index;
        return 1;
    }
    draft->distinct[head->distinct++] = (uint8_t)index;
    int words = tensor_kind(flat->value[index], draft->kind + head->kinds);
    head->kinds = (uint16_t)(head->kinds + words);
    return size > 0 && words > 0;
}

static int draft_values(Draft *draft, const Flat *flat)
{
    memset(&draft->head, 0, sizeof draft->head);
    for (int index = 0; index < flat->values; index++) {
        if (!is_tensor(flat->value[index])) {
            draft->others[draft->head.others++] = (uint8_t)index;
        }
        else if (!draft_tensor(draft, flat, index)) {
            return 0;
        }
    }
    return 1;
}

static Look *look_make(const Draft *draft, PyObject *compared, Known *known)
{
    const Look *head = &draft->head;
    size_t parts_size = (places_of(head) + head->others + head->kinds) * sizeof(uint64_t);
    Look *look = PyMem_Calloc(1, sizeof(Look) + parts_size);
    if (look == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(look, head, sizeof *look);
    Parts parts = look_parts(look);
    memcpy(parts.distinct, draft->distinct, look->distinct);
    memcpy(parts.others, draft->others, look->others);
    memcpy(parts.again, draft->again, 2u * look->again);
    memcpy(parts.tensors, draft->tensors, look->tensors);
    memcpy(parts.sizes, draft->sizes, look->tensors);
    memcpy(parts.kind, draft->kind, look->kinds * sizeof(uint64_t));
    for (int index = 0; index < look->others; index++) {
        parts.other[index] = Py_NewRef(PyList_GET_ITEM(compared, index));
    }
    look->known = (Known *)Py_NewRef((PyObject *)known);
    return look;
}

/* Let the form of a look know which values stand for themselves; looks that were kept under others are not found. */
static void form_tell(Form *form, const Look *look)
{
    Parts parts = look_parts(look);
    form->selves = 0;
    for (int index = 0; index < look->others; index++) {
        if (PyWeakref_CheckRef(parts.other[index])) {
            form->self[form->selves++] = parts.others[index];
        }
    }
}

/* Take out the last of the looks that are found where ``like`` is, beyond as many as are kept. */
static void look_cut(Looks *looks, const Look *like)
{
    int count = 0;
    Look **last = NULL;
    for (Look **link = &looks->looks[like->hash & (LOOKS - 1)]; *link != NULL; link = &(*link)->next) {
        if ((*link)->hash == like->hash && (*link)->form == like->form) {
            count++;
            last = link;
        }
    }
    if (count > MOST_LAYOUTS) {
        take_out(looks, last);
    }
}

/* Keep what a call looks like, if all in it can be compared later; -1 on an error.
 *
 * ``compared`` is a list of what its values that are no tensors must be.
 */
int look_keep(Looks *looks, const Where *where, Flat *flat, PyObject *compared, Known *known)
{
    Draft draft;
    if (!draft_values(&draft, flat)) {
        return 0;
    }
    if (draft.head.others != PyList_GET_SIZE(compared)) {
        PyErr_SetString(PyExc_ValueError, "as many values must be compared as are no tensors");
        return -1;
    }
    Look *look = look_make(&draft, compared, known);
    if (look == NULL) {
        return -1;
    }
    if (looks->count >= MOST_LOOKS) {
        looks_clear(looks);
    }
    uint64_t hash = form_hash(where, flat);
    Form *form = form_find(looks, where, flat, hash);
    if (form == NULL && (form = form_make(looks, where, flat, hash)) == NULL) {
        look_free(look);
        return -1;
    }
    form_tell(form, look);
    look->form = form;
    look->hash = look_hash(form, flat);
    Look **bucket = &looks->looks[look->hash & (LOOKS - 1)];
    look->next = *bucket;
    *bucket = look;
    looks->count++;
    looks->changes++;
    looks_hold(looks);
    look_cut(looks, look);
    looks_drop(looks);
    return 0;
}

/* Where to keep what is written of all calls of an operator at a place; NULL, with an error, where there is no memory. */
PyObject **form_text(Looks *looks, const Where *where)
{
    Flat none = {.values = 0, .types = 0};
    uint64_t hash = form_hash(where, &none);
    Form *form = form_find(looks, where, &none, hash);
    if (form == NULL && looks->count >= MOST_LOOKS) {
        looks_clear(looks);
    }
    if (form == NULL && (form = form_make(looks, where, &none, hash)) != NULL) {
        looks->count++;
    }
    return form == NULL ? NULL : &form->text;
}
