// Lower bound for a process with an API: listens at a Unix socket and answers every request with one text.
//
//   answerer SOCKET
//
// It serves one connection after another and parses nothing but the end of a request's head.

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char ANSWER[] =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 93\r\n\r\n"
    "{\"id\":\"anonymous-instance\",\"state\":\"Not started\",\"vmm_version\":\"0.1.0\",\"app_name\":"
    "\"answerer\"}";

static void serve(int client) {
    char request[4096];
    size_t len = 0;
    for (;;) {
        ssize_t got = read(client, request + len, sizeof request - len);
        if (got <= 0)
            break;
        len += (size_t)got;
        if (len < 4 || memcmp(request + len - 4, "\r\n\r\n", 4) != 0)
            continue;
        if (write(client, ANSWER, sizeof ANSWER - 1) < 0)
            break;
        len = 0;
    }
    close(client);
}

int main(int count, char **arguments) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (count != 2 || strlen(arguments[1]) >= sizeof address.sun_path)
        return 2;
    strcpy(address.sun_path, arguments[1]);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 16) < 0)
        return 1;
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            return 1;
        serve(client);
    }
}
