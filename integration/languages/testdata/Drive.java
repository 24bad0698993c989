import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.UUID;

/** Runs the page's class: a command a line, an answer a line. */
final class Drive {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (Connection db = DriverManager.getConnection(System.getenv("TEST_JDBC_URL"))) {
            for (String line; (line = in.readLine()) != null; ) {
                System.out.println(answer(db, line.split(" ")));
                System.out.flush();
            }
        }
    }

    private static String answer(Connection db, String[] words) {
        try {
            if (words[0].equals("place")) {
                Orders.place(db, UUID.fromString(words[1]), words[2], "{\"number\": \"" + words[2] + "\"}");
                return "placed";
            }
            return Orders.ship(db, words[1], words[2]) ? "first" : "duplicate";
        } catch (SQLException e) {
            return "error " + e.getSQLState();
        }
    }
}
