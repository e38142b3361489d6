/* Sizes and strides: told of a tensor where they are others than in the description of one that looked like it. */
#include "crossing.h"
#include "line.h"

int shape_is(const Shape *shape, const Shape *other)
{
    size_t bytes = shape->dimensions * sizeof *shape->size;
    return shape->dimensions == other->dimensions && memcmp(shape->size, other->size, bytes) == 0 &&
           memcmp(shape->stride, other->stride, bytes) == 0;
}

/* As torch has it: the strides of dimensions of one element do not matter, and nothing does where there are none. */
int shape_is_contiguous(const Shape *shape)
{
    uint64_t expected = 1;
    int is_contiguous = 1;
    for (uint64_t index = shape->dimensions; index-- > 0;) {
        if (shape->size[index] != 1) {
            is_contiguous &= shape->stride[index] == expected;
            expected *= shape->size[index];
        }
    }
    return is_contiguous || expected == 0;
}

uint64_t shape_elements(const Shape *shape)
{
    uint64_t count = 1;
    for (uint64_t index = 0; index < shape->dimensions; index++) {
        count *= shape->size[index];
    }
    return count;
}

/* The same with the strides that a tensor of such sizes has where nobody says otherwise. */
static Shape usual(const Shape *shape)
{
    Shape found = *shape;
    uint64_t step = 1;
    for (uint64_t index = shape->dimensions; index-- > 0;) {
        found.stride[index] = step;
        step *= shape->size[index] > 1 ? shape->size[index] : 1;
    }
    return found;
}

/* Whether a tensor has other sizes than in the description, or strides that follow neither from those nor from these. */
static int is_other(const Shape *shape, const Shape *described, int of_strides)
{
    size_t bytes = shape->dimensions * sizeof *shape->size;
    int has_sizes = memcmp(shape->size, described->size, bytes) == 0;
    if (!of_strides) {
        return !has_sizes;
    }
    Shape expected = has_sizes ? *described : usual(shape);
    return memcmp(shape->stride, expected.stride, bytes) != 0;
}

static void put_extents(Line *line, int index, uint64_t dimensions, const uint64_t *extents)
{
    PUT(line, "[");
    put_number(line, (uint64_t)index);
    PUT(line, ",[");
    for (uint64_t at = 0; at < dimensions; at++) {
        if (at > 0) {
            PUT(line, ",");
        }
        put_number(line, extents[at]);
    }
    PUT(line, "]]");
}

static int put_those(Line *line, const Shape *described, const Shape *shapes, int tensors, int of_strides,
                     const char *limit)
{
    int count = 0;
    for (int index = 0; index < tensors; index++) {
        if (!is_other(&shapes[index], &described[index], of_strides)) {
            continue;
        }
        if (limit - line->end < LONGEST_SHAPE) {
            return 0;
        }
        if (count++ > 0) {
            PUT(line, ",");
        }
        else if (of_strides) {
            PUT(line, ",\"strides\":[");
        }
        else {
            PUT(line, ",\"shapes\":[");
        }
        put_extents(line, index, shapes[index].dimensions, of_strides ? shapes[index].stride : shapes[index].size);
    }
    if (count > 0) {
        PUT(line, "]");
    }
    return 1;
}

/* The sizes and strides that are others than in the description, as a line has them; 0 where there is no room. */
int put_shapes(Line *line, const Shape *described, const Shape *shapes, int tensors, const char *limit)
{
    return put_those(line, described, shapes, tensors, 0, limit) && put_those(line, described, shapes, tensors, 1, limit);
}
