/* A client of the metadata service: HTTP over TCP over frames of its own. Each typed byte is an order:
 *
 *   t  asks for a token, and keeps it       c  gets the data requests= times, each on a connection
 *   g  gets the data with the token         k  gets the data requests= times on one connection
 *   p  gets the data without a token        x  sends a frame of the tests' own type
 *   j  as p, and accepts JSON
 *
 * The answer is a line with the order, status and body. With once=1 it does p and powers off. */
#include "guest.h"
#include "virtio.h"

#define RECEIVE 0
#define TRANSMIT 1
#define BUFFER 2048
#define HEADER 12 /* of virtio, in front of each frame */
#define IP 14
#define TCP 34
#define CARRIED 54
#define LONGEST 1514

#define FIN 1
#define SYN 2
#define RST 4
#define PSH 8
#define ACK 16

static const u8 own[6] = {2, 0, 0, 0, 0, 2}, own_ip[4] = {10, 0, 0, 2}, service_ip[4] = {169, 254, 169, 254};
static u8 service[6] = {255, 255, 255, 255, 255, 255};

static volatile u8 buffers[ENTRIES][BUFFER];
static u8 in[BUFFER], out[LONGEST + 6], answer[8192], token[128];
static u32 answered, sent_up_to, seen_up_to;
static u16 port = 1024;

static void put16(u8 *at, u32 number) { at[0] = number >> 8, at[1] = number; }
static void put32(u8 *at, u32 number) { put16(at, number >> 16), put16(at + 2, number); }
static u32 get16(const u8 *at) { return at[0] << 8 | at[1]; }
static u32 get32(const u8 *at) { return get16(at) << 16 | get16(at + 2); }

static int same(const u8 *one, const u8 *other, u32 length)
{
    while (length--)
        if (*one++ != *other++)
            return 0;
    return 1;
}

static void give_buffer(u16 number)
{
    struct part part = {buffers[number], BUFFER, WRITE};
    virtio_give(RECEIVE, number, &part, 1);
}

static void send(u32 length)
{
    static volatile u8 nothing[HEADER];
    struct part frame[] = {{&nothing, HEADER, 0}, {out, length < 60 ? 60 : length, 0}};
    virtio_ask(TRANSMIT, frame, 2);
}

/* Starts a frame. */
static void address(u32 kind)
{
    for (u32 at = 0; at < sizeof out; at += 8)
        *(u64 *)(out + at) = 0;
    copy(out, service, 6);
    copy(out + 6, own, 6);
    put16(out + 12, kind);
}

/* Waits for a frame and returns its length. */
static u32 receive(void)
{
    u16 number;
    u32 length;
    while (!virtio_take(RECEIVE, &number, &length))
        ;
    copy(in, buffers[number] + HEADER, length - HEADER);
    give_buffer(number);
    return length - HEADER;
}

static u32 sum(const u8 *at, u32 length)
{
    u32 sum = 0;
    for (u32 place = 0; place < length; place++)
        sum += place & 1 ? at[place] : at[place] << 8;
    return sum;
}

static u32 folded(u32 sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

/* Waits for the next segment of the connection. Returns the length of what it carries. */
static u32 receive_segment(void)
{
    for (;;) {
        u32 length = receive();
        if (get16(in + 12) != 0x800 || !same(in + IP + 12, service_ip, 4) || get16(in + TCP + 2) != port)
            continue;
        u32 whole = get16(in + IP + 2), segment = whole - 20;
        if (whole + IP > length || in[IP] != 0x45)
            wrong("length of a packet", whole, length);
        expect("checksum of a header", port, folded(sum(in + IP, 20)), 0xffff);
        u32 pseudo = sum(in + IP + 12, 8) + in[IP + 9] + segment;
        expect("checksum of a segment", port, folded(pseudo + sum(in + TCP, segment)), 0xffff);
        u32 options = (in[TCP + 12] >> 4) * 4;
        copy(in + CARRIED, in + TCP + options, segment - options);
        return segment - options;
    }
}

static void make_segment(u8 flags, const u8 *carried, u32 length)
{
    address(0x800);
    out[IP] = 0x45;
    put16(out + IP + 2, 40 + length);
    out[IP + 8] = 64;
    out[IP + 9] = 6;
    copy(out + IP + 12, own_ip, 4);
    copy(out + IP + 16, service_ip, 4);
    put16(out + IP + 10, ~folded(sum(out + IP, 20)));
    put16(out + TCP, port);
    put16(out + TCP + 2, 80);
    put32(out + TCP + 4, sent_up_to);
    put32(out + TCP + 8, seen_up_to);
    out[TCP + 12] = 5 << 4;
    out[TCP + 13] = flags;
    put16(out + TCP + 14, sizeof answer);
    copy(out + CARRIED, carried, length);
    put16(out + TCP + 16, ~folded(sum(out + IP + 12, 8) + 6 + 20 + length + sum(out + TCP, 20 + length)));
}

static void send_segment(u8 flags, const u8 *carried, u32 length)
{
    make_segment(flags, carried, length);
    send(CARRIED + length);
    sent_up_to += length + (flags & (SYN | FIN) ? 1 : 0);
}

/* Asks for the hardware address of the service. */
static void resolve(void)
{
    static const u8 question[] = {0, 1, 8, 0, 6, 4, 0, 1};
    address(0x806);
    copy(out + 14, question, sizeof question);
    copy(out + 22, own, 6);
    copy(out + 28, own_ip, 4);
    copy(out + 38, service_ip, 4);
    send(42);
    do
        receive();
    while (get16(in + 12) != 0x806 || get16(in + 20) != 2 || !same(in + 28, service_ip, 4));
    copy(service, in + 22, 6);
}

/* Opens a connection. Returns 0 if it is refused. */
static int connect(void)
{
    port = port < 60000 ? port + 1 : 1025;
    sent_up_to = (u32)rdtsc(), seen_up_to = 0;
    send_segment(SYN, 0, 0);
    receive_segment();
    if (in[TCP + 13] & RST)
        return 0;
    expect("flags of the answer to SYN", port, in[TCP + 13] & (SYN | ACK), SYN | ACK);
    seen_up_to = get32(in + TCP + 4) + 1;
    send_segment(ACK, 0, 0);
    return 1;
}

/* Returns the bytes of the whole answer, or 0 if its length is not known yet. */
static u32 length_of_answer(void)
{
    static const u8 field[] = "\r\nContent-Length: ", blank[] = "\r\n\r\n";
    u32 body = 0, found = 0;
    for (u32 at = 0; at + 4 <= answered; at++) {
        if (!found && at + sizeof field <= answered && same(answer + at, field, sizeof field - 1)) {
            found = 1;
            for (const u8 *digit = answer + at + sizeof field - 1; *digit >= '0' && *digit <= '9'; digit++)
                body = body * 10 + *digit - '0';
        }
        if (same(answer + at, blank, 4))
            return at + 4 + body;
    }
    return 0;
}

/* Sends a request and receives its answer. Returns 0 if the connection is reset. */
static int ask(const u8 *request, u32 length)
{
    answered = 0;
    send_segment(ACK | PSH, request, length);
    for (u32 whole = 0; !whole || answered < whole; whole = length_of_answer()) {
        u32 carried = receive_segment();
        if (in[TCP + 13] & RST)
            return 0;
        if (get32(in + TCP + 4) == seen_up_to && carried && answered + carried <= sizeof answer) {
            copy(answer + answered, in + CARRIED, carried);
            answered += carried;
            seen_up_to += carried;
            send_segment(ACK, 0, 0);
        }
    }
    return 1;
}

/* Closes the connection, and leaves what comes of it to later. */
static void finish(void) { send_segment(FIN | ACK, 0, 0); }

static u32 append(u8 *to, u32 length, const char *text)
{
    while (*text)
        to[length++] = *text++;
    return length;
}

static u32 body_of_answer(void)
{
    u32 at = 0;
    while (!same(answer + at, (const u8 *)"\r\n\r\n", 4))
        at++;
    return at + 4;
}

/* Carries out an order, on a new connection. */
static void fetch(char order)
{
    static u8 request[512];
    u32 length = 0;
    if (order == 't') {
        length = append(request, length, "PUT /latest/api/token HTTP/1.1\r\n");
        length = append(request, length, "X-metadata-token-ttl-seconds: 600\r\n");
    } else {
        length = append(request, length, "GET /latest/user-data HTTP/1.1\r\n");
    }
    if (order == 'g') {
        length = append(request, length, "X-metadata-token: ");
        length = append(request, length, (char *)token);
        length = append(request, length, "\r\n");
    }
    if (order == 'j')
        length = append(request, length, "Accept: application/json\r\n");
    length = append(request, length, "Host: 169.254.169.254\r\n\r\n");
    put(order);
    if (!connect() || !ask(request, length)) {
        print(" refused\n");
        return;
    }
    finish();
    u32 body = body_of_answer();
    put(' ');
    for (u32 at = 9; at < 12; at++)
        put(answer[at]);
    put(' ');
    for (u32 at = body; at < answered; at++)
        put(answer[at]);
    put('\n');
    if (order == 't' && answered - body < sizeof token) {
        copy(token, answer + body, answered - body);
        token[answered - body] = 0;
    }
}

/* Sends the request in `out` once more, and takes an answer as long as the last one. Some hosts emulate the
 * guest's instructions, so these are few: the service verifies no checksum, and the next request acknowledges
 * the answer. */
static void ask_again(u32 length)
{
    put32(out + TCP + 4, sent_up_to);
    put32(out + TCP + 8, seen_up_to);
    send(CARRIED + length);
    sent_up_to += length;
    for (u32 taken = 0; taken < answered;) {
        u16 number;
        u32 written;
        while (!virtio_take(RECEIVE, &number, &written))
            ;
        const u8 *frame = (const u8 *)buffers[number] + HEADER;
        u32 carried = get16(frame + IP + 2) - 40;
        if (frame[TCP + 13] & RST)
            wrong("reset connection", port, taken);
        if (carried && get32(frame + TCP + 4) == seen_up_to) {
            if (!taken)
                expect("status", port, frame[CARRIED + 9], '2');
            taken += carried;
            seen_up_to += carried;
        }
        give_buffer(number);
    }
}

/* Gets the data many times, as fast as possible, and all that as often as the command line says. Resets each
 * connection, which leaves nothing to come. */
static void repeat(int on_one_connection)
{
    static u8 request[128];
    u64 requests = option("requests=", 1000), rounds = option("rounds=", 1);
    u32 length = append(request, 0, "GET /latest/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    for (u64 number = 0; number < requests * rounds; number++) {
        if (number && number % requests == 0)
            report("requests", requests);
        if (on_one_connection && number) {
            ask_again(length);
            continue;
        }
        if (!connect())
            wrong("refused connection", number, port);
        if (!ask(request, length))
            wrong("reset connection", number, port);
        expect("status", number, answer[9], '2');
        if (on_one_connection)
            make_segment(ACK | PSH, request, length);
        else
            send_segment(RST | ACK, 0, 0);
    }
    if (on_one_connection)
        send_segment(RST | ACK, 0, 0);
    report("requests", requests);
}

void metadata(void)
{
    virtio_start(1, 0, 2);
    for (u16 number = 0; number < ENTRIES; number++)
        give_buffer(number);
    resolve();
    print("ready\n");
    if (option("once=", 0)) {
        fetch('p');
        power_off();
    }
    for (;;) {
        char order = typed();
        if (order == 'c' || order == 'k') {
            repeat(order == 'k');
        } else if (order == 'x') {
            address(0x88b5);
            send(60);
            print("x sent\n");
        } else if (order) {
            fetch(order);
        }
    }
}
