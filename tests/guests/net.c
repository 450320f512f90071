/* Answers Ethernet frames of the tests' own type with the same frame, its addresses exchanged and its payload
 * inverted.
 *
 *   buffer=N     sets the length of a receive buffer
 *   mergeable=1  lets a frame take several receive buffers */
#include "guest.h"
#include "virtio.h"

#define RECEIVE 0
#define TRANSMIT 1
#define MERGEABLE (1 << 15) /* VIRTIO_NET_F_MRG_RXBUF */
#define LONGEST_BUFFER 2048
#define LONGEST 1514
#define ADDRESS 6
#define KIND (2 * ADDRESS)
#define CARRIED (KIND + 2)

struct header {
    u8 flags, segmentation;
    u16 lengths[4], buffers;
};

static volatile u8 buffers[ENTRIES][LONGEST_BUFFER];
static u8 frame[LONGEST + 8];
static u64 room;

static void give_buffer(u16 number)
{
    struct part part = {buffers[number], room, WRITE};
    virtio_give(RECEIVE, number, &part, 1);
}

/* Waits for a frame, assembles it and returns its length. */
static u32 receive(u32 most_buffers)
{
    u32 length = 0, count = 1, written;
    u16 buffer;
    for (u32 number = 0; number < count; number++) {
        while (!virtio_take(RECEIVE, &buffer, &written))
            if (number)
                wrong("part of a frame", number, count);
        if (number + 1 < count)
            expect("bytes in a buffer before the last", number, written, room);
        u32 before = number ? 0 : sizeof(struct header);
        if (!number)
            count = ((volatile struct header *)buffers[buffer])->buffers;
        if (!count || count > most_buffers)
            wrong("buffers of a frame", buffer, count);
        if (written < before || written > room || length + written - before > LONGEST)
            wrong("length of a frame", length, written);
        copy(frame + length, buffers[buffer] + before, written - before);
        length += written - before;
        give_buffer(buffer);
    }
    return length;
}

static void turn_round(void)
{
    u8 sender[ADDRESS];
    copy(sender, frame + ADDRESS, ADDRESS);
    copy(frame + ADDRESS, frame, ADDRESS);
    copy(frame, sender, ADDRESS);
    for (u64 *word = (u64 *)(frame + CARRIED); (u8 *)word < frame + LONGEST; word++)
        *word = ~*word;
}

void net(void)
{
    static volatile struct header nothing;
    u32 mergeable = option("mergeable=", 0) ? MERGEABLE : 0;
    room = option("buffer=", LONGEST_BUFFER);
    virtio_start(1, mergeable, 2);
    for (u16 number = 0; number < ENTRIES; number++)
        give_buffer(number);
    print("ready\n");
    for (u64 number = 1;;) {
        u32 length = receive(mergeable ? ENTRIES : 1);
        if (frame[KIND] != 0x88 || frame[KIND + 1] != 0xb5)
            continue; /* a frame of the host itself, such as one of IPv6 */
        turn_round();
        struct part answer[] = {{&nothing, sizeof nothing, 0}, {frame, length, 0}};
        virtio_ask(TRANSMIT, answer, 2);
        report("frame", number++);
    }
}
