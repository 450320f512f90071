/* Sends back all data of stream connections. The host opens some; the guest opens one to port 2000 when c is
 * typed. After a transport reset, the guest reports it and forgets its connections. */
#include "guest.h"
#include "virtio.h"

#define RECEIVE 0
#define TRANSMIT 1
#define EVENT 2

#define HOST 2
#define STREAM 1
#define REQUEST 1
#define RESPONSE 2
#define RST 3
#define SHUTDOWN 4
#define RW 5
#define CREDIT_UPDATE 6
#define CREDIT_REQUEST 7

#define CONNECTIONS 4
#define ROOM 4096 /* small, so that a sending host has to wait for credit */
#define CHUNK 1024
#define PORT_OF_HOST 2000

struct header {
    u64 from, to;
    u32 from_port, to_port, length;
    u16 type, what;
    u32 flags, room, passed_on;
} __attribute__((packed));

static struct connection {
    int open;
    u32 host_port, port;
    u32 host_room, host_passed_on, sent; /* the host's credit */
    u32 passed_on, held;
    u8 bytes[ROOM];
} connections[CONNECTIONS];

static volatile struct {
    struct header header;
    u8 bytes[CHUNK];
} received[ENTRIES];
static volatile u32 event;
static u64 cid;

static void give_buffer(u16 number)
{
    struct part part = {&received[number], sizeof received[number], WRITE};
    virtio_give(RECEIVE, number, &part, 1);
}

static void give_event_buffer(void)
{
    struct part part = {&event, sizeof event, WRITE};
    event = ~0;
    virtio_give(EVENT, 0, &part, 1);
}

static void hear_events(void)
{
    u16 head;
    u32 length;
    if (!virtio_take(EVENT, &head, &length))
        return;
    expect("event", length, event, 0);
    for (int at = 0; at < CONNECTIONS; at++)
        connections[at].open = 0;
    cid = get(CONFIG);
    print("reset\n");
    report("cid", cid);
    give_event_buffer();
}

static void send(struct connection *connection, u16 what, u32 length)
{
    static volatile struct header header;
    struct part parts[] = {{&header, sizeof header, 0}, {connection->bytes, length, 0}};
    u16 head;
    u32 nothing;
    header.from = cid;
    header.to = HOST;
    header.from_port = connection->port;
    header.to_port = connection->host_port;
    header.length = length;
    header.type = STREAM;
    header.what = what;
    header.flags = 0;
    header.room = ROOM;
    header.passed_on = connection->passed_on += length;
    virtio_give(TRANSMIT, 0, parts, length ? 2 : 1);
    while (!virtio_take(TRANSMIT, &head, &nothing))
        hear_events(); /* only events are handled until the device has sent it */
}

static struct connection *find(u32 host_port, u32 port)
{
    for (struct connection *at = connections; at < connections + CONNECTIONS; at++)
        if (at->open && at->host_port == host_port && at->port == port)
            return at;
    return 0;
}

/* Opens a new connection. */
static struct connection *fresh(u32 host_port, u32 port)
{
    struct connection *at = connections;
    while (at->open)
        if (++at == connections + CONNECTIONS)
            wrong("one connection too many", host_port, port);
    at->open = 1;
    at->host_port = host_port;
    at->port = port;
    at->host_room = at->host_passed_on = at->sent = at->passed_on = at->held = 0;
    return at;
}

static void hold(struct connection *connection, const volatile u8 *bytes, u32 length)
{
    if (length > CHUNK || connection->held + length > ROOM)
        wrong("bytes beyond the credit", connection->held, length);
    copy(connection->bytes + connection->held, bytes, length);
    connection->held += length;
}

static void receive(void)
{
    u16 number;
    u32 written;
    if (!virtio_take(RECEIVE, &number, &written))
        return;
    struct header header = received[number].header;
    expect("packet's length", number, written, sizeof header + header.length);
    struct connection *connection = find(header.from_port, header.to_port);
    if (!connection && header.what == REQUEST && header.to == cid)
        connection = fresh(header.from_port, header.to_port);
    if (connection) {
        expect("packet's receiver", number, header.to, cid);
        connection->host_room = header.room;
        connection->host_passed_on = header.passed_on;
        if (header.what == RW)
            hold(connection, received[number].bytes, header.length);
    }
    give_buffer(number);
    if (!connection)
        return; /* the packet and its connection are older than the reset */
    if (header.what == REQUEST) {
        send(connection, RESPONSE, 0);
    } else if (header.what == CREDIT_REQUEST) {
        send(connection, CREDIT_UPDATE, 0);
    } else if (header.what == SHUTDOWN) {
        send(connection, RST, 0);
        connection->open = 0;
    } else if (header.what == RST) {
        connection->open = 0;
    }
}

/* Sends back as much as the host has room for. */
static void send_back(struct connection *connection)
{
    u32 room = connection->host_room - (connection->sent - connection->host_passed_on);
    u32 length = connection->held < CHUNK ? connection->held : CHUNK;
    if (length > room)
        length = room;
    if (!length)
        return;
    connection->sent += length;
    send(connection, RW, length);
    connection->held -= length;
    copy(connection->bytes, connection->bytes + length, connection->held);
}

void vsock(void)
{
    u32 port = 5000;
    virtio_start(19, 0, 3);
    cid = get(CONFIG);
    for (u16 number = 0; number < ENTRIES; number++)
        give_buffer(number);
    give_event_buffer();
    print("ready\n");
    report("cid", cid);
    for (;;) {
        hear_events();
        receive();
        for (int at = 0; at < CONNECTIONS; at++)
            if (connections[at].open)
                send_back(&connections[at]);
        if (typed() == 'c')
            send(fresh(PORT_OF_HOST, port++), REQUEST, 0);
    }
}
