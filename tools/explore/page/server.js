// What only a server can do comes here.
