// SPDX-License-Identifier: Apache-2.0
// Decodes the updates of a P4Runtime WriteRequest, if they are ordinary: each writes an entry of a table that is
// described here, with nothing but a match, a priority and an action, encoded as protobuf itself encodes it, and
// with values that the table can have. Whatever else there may be, and what is wrong with it, is for Python to say.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How a field is matched: the number of FieldMatch's field. Parameters of actions are not.
enum { EXACT = 2, TERNARY = 3, LPM = 4, RANGE = 6, OPTIONAL = 7 };
enum { DELETE = 3 };                                        // of Update.Type, whose others are 1 and 2
enum { VARINT, FIXED64, LENGTH, FIXED32 = 5 };              // protobuf's wire types
enum { UPDATES = 4 << 3 | LENGTH };                         // a field's number and wire type
enum { KIND_AND_TABLE, ACTION, WIRE_BEGIN, WIRE_END, KEY }; // words of a record

// `bits` bits of a value, from bit `low` of it, go to bit `shift` of word `word`.
typedef struct {
    uint32_t word, shift, low, bits;
} p4rt_piece;

// A key field or a parameter, of `bits` bits; its pieces are together all of it.
typedef struct {
    uint32_t id, bits, match, first_piece, pieces;
} p4rt_field;

// `number` is the program's.
typedef struct {
    uint32_t id, number, first_param, params;
} p4rt_action;

// A packed key is `key_words` words; if `masked`, as many for the mask (or the upper end of a range); and unless all
// fields are exact the priority, which in a table that is not masked is the length of the prefix.
typedef struct {
    uint32_t id, first_field, fields, first_action, actions, key_words, masked;
} p4rt_table;

typedef struct {
    const p4rt_table *table;
    const p4rt_action *action;
    const p4rt_field *field; // parameters among them
    const p4rt_piece *piece;
    uint32_t tables;
    uint32_t most_key_words; // of all packed keys; behind them in a record are the arguments
    uint32_t record_words;
} p4rt_tables;

typedef struct {
    const uint8_t *at, *end;
} span;

typedef struct {
    const p4rt_tables *known;
    const uint8_t *data;     // where all updates begin
    const p4rt_table *table; // of the update
    uint64_t *key, *args;
    bool shortest; // all values of the update are as short as can be
} context;

// -- protobuf -------------------------------------------------------------------------------------------

static bool is_empty(span in) { return in.at == in.end; }
static bool begins_with(span in, uint8_t tag) { return !is_empty(in) && *in.at == tag; }

// A number of up to 32 bits, in no more bytes than it needs.
static bool take_number(span *in, uint32_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 35 && !is_empty(*in); shift += 7) {
        const uint8_t byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) != 0) continue;
        *out = (uint32_t)value;
        return value <= UINT32_MAX && (byte != 0 || shift == 0);
    }
    return false;
}

// The field `number`, a number. 0 would not be sent.
static bool take_scalar(span *in, uint8_t number, uint32_t *out)
{
    if (!begins_with(*in, (uint8_t)(number << 3 | VARINT))) return false;
    in->at++;
    return take_number(in, out) && *out != 0;
}

// The field `number`, a message or a byte string.
static bool take_part(span *in, uint8_t number, span *out)
{
    uint32_t length;
    if (!begins_with(*in, (uint8_t)(number << 3 | LENGTH))) return false;
    in->at++;
    if (!take_number(in, &length) || length > (size_t)(in->end - in->at)) return false;
    *out = (span){in->at, in->at + length};
    in->at += length;
    return true;
}

static bool skip(span *in, size_t bytes)
{
    if (bytes > (size_t)(in->end - in->at)) return false;
    in->at += bytes;
    return true;
}

static bool skip_varint(span *in)
{
    while (!is_empty(*in))
        if ((*in->at++ & 0x80) == 0) return true;
    return false;
}

// -- values ---------------------------------------------------------------------------------------------

// The field `number`, a value of at most `bits` bits, without its leading zeros.
static bool take_value(context *c, span *in, uint8_t number, uint32_t bits, span *out)
{
    if (!take_part(in, number, out) || is_empty(*out)) return false;
    while (out->end - out->at > 1 && *out->at == 0) {
        out->at++;
        c->shortest = false;
    }
    const size_t length = (size_t)(out->end - out->at), most = (bits + 7) / 8;
    return length < most || (length == most && (bits % 8 == 0 || *out->at >> bits % 8 == 0));
}

static uint64_t ones(uint32_t bits) { return bits == 0 ? 0 : UINT64_MAX >> (64 - bits); }

// The bits of a value that a piece is about.
static uint64_t bits_of(span value, const p4rt_piece *piece)
{
    const size_t length = (size_t)(value.end - value.at);
    uint64_t found = 0;
    unsigned got = 0, below = piece->low % 8;
    for (size_t i = piece->low / 8; i < length && got < piece->bits; i++) {
        found |= (uint64_t)(value.end[-1 - (ptrdiff_t)i] >> below) << got;
        got += 8 - below;
        below = 0;
    }
    return found & ones(piece->bits);
}

// The bits of a prefix's mask that a piece is about; `beyond` is how many bits of the field are behind the prefix.
static uint64_t prefix_bits(uint32_t beyond, const p4rt_piece *piece)
{
    const uint32_t zeros = beyond <= piece->low ? 0 : beyond - piece->low;
    return zeros >= piece->bits ? 0 : ones(piece->bits) & ~ones(zeros);
}

static void place(const p4rt_piece *piece, uint64_t bits, uint64_t *words)
{
    words[piece->word] |= bits << piece->shift;
}

// -- keys -----------------------------------------------------------------------------------------------

static const p4rt_piece *pieces_of(const context *c, const p4rt_field *field)
{
    return &c->known->piece[field->first_piece];
}

static uint64_t *check_words(const context *c) { return c->key + c->table->key_words; }

static bool take_single(context *c, const p4rt_field *field, span in)
{
    span value;
    if (!take_value(c, &in, 1, field->bits, &value) || !is_empty(in)) return false;
    const p4rt_piece *piece = pieces_of(c, field);
    for (uint32_t i = 0; i < field->pieces; i++, piece++) {
        place(piece, bits_of(value, piece), c->key);
        if (c->table->masked) place(piece, ones(piece->bits), check_words(c));
    }
    return true;
}

static bool take_prefix(context *c, const p4rt_field *field, span in)
{
    span value;
    uint32_t length;
    if (!take_value(c, &in, 1, field->bits, &value) || !take_scalar(&in, 2, &length) || !is_empty(in))
        return false;
    if (length > field->bits) return false;
    const p4rt_piece *piece = pieces_of(c, field);
    for (uint32_t i = 0; i < field->pieces; i++, piece++) {
        const uint64_t bits = bits_of(value, piece), mask = prefix_bits(field->bits - length, piece);
        if ((bits & ~mask) != 0) return false;
        place(piece, bits, c->key);
        if (c->table->masked) place(piece, mask, check_words(c));
    }
    if (!c->table->masked) *check_words(c) = length;
    return true;
}

static bool take_ternary(context *c, const p4rt_field *field, span in)
{
    span value, mask;
    if (!take_value(c, &in, 1, field->bits, &value) || !take_value(c, &in, 2, field->bits, &mask) ||
        !is_empty(in))
        return false;
    uint64_t any = 0;
    const p4rt_piece *piece = pieces_of(c, field);
    for (uint32_t i = 0; i < field->pieces; i++, piece++) {
        const uint64_t bits = bits_of(value, piece), kept = bits_of(mask, piece);
        if ((bits & ~kept) != 0) return false;
        any |= kept;
        place(piece, bits, c->key);
        place(piece, kept, check_words(c));
    }
    return any != 0;
}

// A range field has one piece.
static bool take_range(context *c, const p4rt_field *field, span in)
{
    span first, last;
    if (!take_value(c, &in, 1, field->bits, &first) || !take_value(c, &in, 2, field->bits, &last) ||
        !is_empty(in))
        return false;
    const p4rt_piece *piece = pieces_of(c, field);
    const uint64_t low = bits_of(first, piece), high = bits_of(last, piece);
    if (low > high || (low == 0 && high == ones(piece->bits))) return false;
    place(piece, low, c->key);
    place(piece, high, check_words(c));
    return true;
}

static bool take_match(context *c, const p4rt_field *field, span in)
{
    span match;
    if (!take_part(&in, (uint8_t)field->match, &match) || !is_empty(in)) return false;
    switch (field->match) {
    case EXACT:
    case OPTIONAL:
        return take_single(c, field, match);
    case LPM:
        return take_prefix(c, field, match);
    case TERNARY:
        return take_ternary(c, field, match);
    case RANGE:
        return take_range(c, field, match);
    default:
        return false;
    }
}

// A field that is left out matches everything.
static bool leave_out(context *c, const p4rt_field *field)
{
    if (field->match == EXACT) return false;
    const p4rt_piece *piece = pieces_of(c, field);
    if (field->match == RANGE) place(piece, ones(piece->bits), check_words(c));
    return true;
}

// The matches of an entry, in the order of the table's fields.
static bool take_key(context *c, span *in)
{
    const p4rt_field *field = &c->known->field[c->table->first_field], *end = field + c->table->fields;
    while (begins_with(*in, 2 << 3 | LENGTH)) {
        span match;
        uint32_t id;
        if (!take_part(in, 2, &match) || !take_scalar(&match, 1, &id)) return false;
        for (; field != end && field->id != id; field++)
            if (!leave_out(c, field)) return false;
        if (field == end || !take_match(c, field++, match)) return false;
    }
    for (; field != end; field++)
        if (!leave_out(c, field)) return false;
    return true;
}

static bool take_priority(context *c, span *in)
{
    uint32_t priority;
    if (!c->table->masked) return true; // or else something is left over
    if (!take_scalar(in, 4, &priority) || priority > INT32_MAX) return false;
    *(check_words(c) + c->table->key_words) = priority;
    return true;
}

// -- actions --------------------------------------------------------------------------------------------

static const p4rt_action *action_with(const context *c, uint32_t id)
{
    const p4rt_action *action = &c->known->action[c->table->first_action];
    for (uint32_t i = 0; i < c->table->actions; i++)
        if (action[i].id == id) return &action[i];
    return NULL;
}

// The action of an entry, with its parameters in their order.
static bool take_action(context *c, span *in, uint64_t *number)
{
    span table_action, call;
    uint32_t id;
    if (!take_part(in, 3, &table_action) || !take_part(&table_action, 1, &call) || !is_empty(table_action))
        return false;
    if (!take_scalar(&call, 1, &id)) return false;
    const p4rt_action *action = action_with(c, id);
    if (action == NULL) return false;
    const p4rt_field *param = &c->known->field[action->first_param];
    for (uint32_t i = 0; i < action->params; i++, param++) {
        span given, value;
        if (!take_part(&call, 4, &given) || !take_scalar(&given, 2, &id) || id != param->id) return false;
        if (!take_value(c, &given, 3, param->bits, &value) || !is_empty(given)) return false;
        const p4rt_piece *piece = pieces_of(c, param);
        for (uint32_t j = 0; j < param->pieces; j++, piece++) place(piece, bits_of(value, piece), c->args);
    }
    *number = action->number;
    return is_empty(call);
}

// -- updates --------------------------------------------------------------------------------------------

static const p4rt_table *table_with(const p4rt_tables *known, const p4rt_table *last, uint32_t id)
{
    if (last != NULL && last->id == id) return last; // most are of the same
    for (uint32_t i = 0; i < known->tables; i++)
        if (known->table[i].id == id) return &known->table[i];
    return NULL;
}

static bool take_update(context *c, span in, uint64_t *record)
{
    span entity, entry;
    uint32_t kind, id;
    if (!take_scalar(&in, 1, &kind) || kind > DELETE || !take_part(&in, 2, &entity) || !is_empty(in))
        return false;
    if (!take_part(&entity, 2, &entry) || !is_empty(entity)) return false;
    const span wire = entry;
    if (!take_scalar(&entry, 1, &id) || (c->table = table_with(c->known, c->table, id)) == NULL) return false;
    record[KIND_AND_TABLE] = (uint64_t)kind << 32 | (uint64_t)(c->table - c->known->table);
    c->key = record + KEY;
    c->args = c->key + c->known->most_key_words;
    c->shortest = true;
    if (!take_key(c, &entry)) return false;
    const bool acts = begins_with(entry, 3 << 3 | LENGTH);
    if (acts ? !take_action(c, &entry, &record[ACTION]) : kind != DELETE) return false;
    if (!take_priority(c, &entry) || !is_empty(entry)) return false;
    if (c->shortest && kind != DELETE) {
        record[WIRE_BEGIN] = (uint64_t)(wire.at - c->data);
        record[WIRE_END] = (uint64_t)(wire.end - c->data);
    }
    return true;
}

// Where the updates of a WriteRequest begin and end, in bytes, and how many there are; they are one behind the other.
// Returns 0, or -1 when it is no such message.
int p4rt_find(const uint8_t *data, uint64_t size, uint64_t found[3])
{
    span in = {data, data + size};
    uint64_t begin = 0, end = 0, count = 0;
    while (!is_empty(in)) {
        const uint64_t start = (uint64_t)(in.at - data);
        const bool update = begins_with(in, UPDATES);
        span part;
        uint32_t tag;
        if (update) {
            if (!take_part(&in, UPDATES >> 3, &part) || (count != 0 && end != start)) return -1;
            if (count++ == 0) begin = start;
            end = (uint64_t)(in.at - data);
            continue;
        }
        if (!take_number(&in, &tag) || tag >> 3 == 0) return -1;
        switch (tag & 7) {
        case VARINT:
            if (!skip_varint(&in)) return -1;
            break;
        case FIXED64:
            if (!skip(&in, 8)) return -1;
            break;
        case FIXED32:
            if (!skip(&in, 4)) return -1;
            break;
        case LENGTH:
            if (!take_number(&in, &tag) || !skip(&in, tag)) return -1;
            break;
        default:
            return -1;
        }
    }
    found[0] = begin, found[1] = end, found[2] = count;
    return 0;
}

// Decodes the `size` bytes of updates that p4rt_find has found, into a record for each. A record is the update's type
// (in its upper half) and the number of its table here, the action's number, where in `data` its TableEntry begins and
// ends (0 and 0 unless a read gives the same bytes), the packed key and, `most_key_words` behind, the arguments.
// All records are zero before. Returns 0, or -1 when one of the updates is not ordinary.
int p4rt_decode(const p4rt_tables *known, const uint8_t *data, uint64_t size, uint64_t count,
                uint64_t *records)
{
    span in = {data, data + size};
    context c = {.known = known, .data = data};
    for (uint64_t i = 0; i < count; i++, records += known->record_words) {
        span update;
        if (!take_part(&in, UPDATES >> 3, &update) || !take_update(&c, update, records)) return -1;
    }
    return is_empty(in) ? 0 : -1;
}
