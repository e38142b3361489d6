/* Where calls are made, by code and instruction; what is new is asked of sites.py. */
#include "crossing.h"

#define PLACES 8192 /* a power of two */
#define MOST_PLACES 4096

typedef struct {
    PyObject *code;
    Py_ssize_t instruction;
    PyObject *site; /* None for code that is passed over */
} Place;

static Place places[PLACES];
static size_t used;
static PyObject *told; /* frame -> its site, or None where it is passed over */

static Py_ssize_t instruction_of(PyFrameObject *frame)
{
#if PY_VERSION_HEX < 0x030b0000
    return frame->f_lasti;
#else
    return PyFrame_GetLasti(frame);
#endif
}

static Place *place_of(PyObject *code, Py_ssize_t instruction)
{
    uint64_t hash = ((uint64_t)(uintptr_t)code >> 4) ^ ((uint64_t)instruction << 32);
    hash *= 0x9E3779B97F4A7C15u;
    size_t index = (size_t)(hash >> 40) & (PLACES - 1);
    while (places[index].code != NULL && (places[index].code != code || places[index].instruction != instruction)) {
        index = (index + 1) & (PLACES - 1);
    }
    return &places[index];
}

static void forget_places(void)
{
    used = 0;
    for (size_t index = 0; index < PLACES; index++) {
        Place gone = places[index];
        places[index].code = places[index].site = NULL; /* first: to let go of code may run a program's own */
        Py_XDECREF(gone.code);
        Py_XDECREF(gone.site);
    }
}

/* Ask for the site of a frame, and keep the answer. */
static PyObject *ask(PyFrameObject *frame, PyObject *code, Py_ssize_t instruction)
{
    PyObject *site = told == NULL ? NULL : PyObject_CallOneArg(told, (PyObject *)frame);
    if (site == NULL) {
        return NULL;
    }
    if (used >= MOST_PLACES) {
        forget_places();
    }
    Place *place = place_of(code, instruction);
    if (place->code == NULL) {
        place->code = Py_NewRef(code);
        place->instruction = instruction;
        place->site = Py_NewRef(site);
        used++;
    }
    return site;
}

/* The site of a call that was made in ``frame``, past the frames between: a new reference, NULL where it is unknown. */
PyObject *site_of(PyFrameObject *frame)
{
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        Py_ssize_t instruction = instruction_of(frame);
        Place *place = place_of(code, instruction);
        PyObject *site = place->code != NULL ? Py_NewRef(place->site) : ask(frame, code, instruction);
        Py_DECREF(code);
        if (site == NULL || site != Py_None) {
            Py_DECREF(frame);
            return site;
        }
        Py_DECREF(site);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return NULL;
}

PyObject *sites_use(PyObject *module, PyObject *function)
{
    (void)module;
    Py_INCREF(function);
    Py_XSETREF(told, function);
    Py_RETURN_NONE;
}
